"""Code of the user's own that a recipe names: ``my.py:MyModel``, or ``package.module:MyModel``.

A file is read once, with the modules beside it that it imports, and what was read is what runs: here, in worker
processes and at sites. The hash of these files is part of the module's name and of what the recipe says
(``my.py@HASH:MyModel``), so that two versions of a file can never be taken for each other. Files are found from the
recipe's folder, from the current one, or, for the recipe in a run's folder, in the copy that lies there. Nothing here
imports torch.
"""

from fedquilt.own_code.files import COPIES as COPIES
from fedquilt.own_code.importing import load as load
from fedquilt.own_code.importing import own_errors as own_errors
from fedquilt.own_code.importing import place as place
from fedquilt.own_code.importing import told as told
from fedquilt.own_code.references import is_reference as is_reference
from fedquilt.own_code.references import looking_in as looking_in
from fedquilt.own_code.references import pinned as pinned
from fedquilt.own_code.references import short as short
from fedquilt.own_code.references import unpinned as unpinned
from fedquilt.own_code.references import where as where
from fedquilt.own_code.trust import let_in as let_in
from fedquilt.own_code.trust import only as only
from fedquilt.own_code.trust import packed as packed
from fedquilt.own_code.trust import received as received
from fedquilt.own_code.trust import refusal as refusal
from fedquilt.own_code.trust import unpacked as unpacked
from fedquilt.own_code.trust import used as used
from fedquilt.own_code.trust import write_down as write_down
