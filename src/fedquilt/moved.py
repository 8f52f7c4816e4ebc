"""Where names of earlier versions are now. Old names go on working for one release, with a DeprecationWarning."""

from __future__ import annotations

NAMES = {  # 'module:name' of 0.1, and what it is now
    "fedquilt.core.exchange:OnBase": "fedquilt.methods.on_base:OnBase",
    "fedquilt.methods.cfl:cfl": "fedquilt.methods.cfl:CFL",
    "fedquilt.methods.cgpfl:cgpfl": "fedquilt.methods.cgpfl:CGPFL",
    "fedquilt.methods.cgpfl:cgpfl_moreau": "fedquilt.methods.cgpfl:CGPFLMoreau",
    "fedquilt.methods.feddrift:feddrift": "fedquilt.methods.feddrift:FedDrift",
    "fedquilt.methods.fedgroup:fedgroup": "fedquilt.methods.fedgroup:FedGroup",
    "fedquilt.methods.fedgroup:fedgroup_params": "fedquilt.methods.fedgroup:FedGroupParams",
    "fedquilt.methods.fedper_grouped:fedper_grouped": "fedquilt.methods.fedper_grouped:FedPerGrouped",
    "fedquilt.methods.fedsoft:fedsoft": "fedquilt.methods.fedsoft:FedSoft",
    "fedquilt.methods.fesem:fesem": "fedquilt.methods.fesem:FeSEM",
    "fedquilt.methods.flhc:flhc": "fedquilt.methods.flhc:FLHC",
    "fedquilt.methods.hcfl:fading": "fedquilt.pieces.clustering.sharing:fading",
    "fedquilt.methods.hcfl:hcfl": "fedquilt.methods.hcfl:HCFL",
    "fedquilt.methods.ifca:ifca": "fedquilt.methods.ifca:IFCA",
    "fedquilt.methods.ifca:ifca_gradient": "fedquilt.methods.ifca:IFCAGradient",
    "fedquilt.methods.lcfed:lcfed": "fedquilt.methods.lcfed:LCFed",
    "fedquilt.methods.pacfl:pacfl": "fedquilt.methods.pacfl:PACFL",
    "fedquilt.methods.scaffold:scaffold": "fedquilt.methods.scaffold:Scaffold",
    "fedquilt.methods.starts:Starting": "fedquilt.methods.regrouping:Regrouping",
}
