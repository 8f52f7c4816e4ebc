"""The leakage audit: attacks on what clients really send.

``quality`` (PSNR, SSIM), ``analytic`` (labels and features from a head's gradient), ``inversion`` (DLG, iDLG),
``tapping`` and ``sight`` (what was sent, and what an attacker makes of it), ``defences``, ``attacks``, ``cells`` and
``report`` (the table), ``command``. Nothing is imported here: ``fedquilt --help`` loads no heavy library.
"""
