"""Is what you wrote well-behaved? One call for a method, a codec or an engine; see ``docs/testing.md``."""

from fedquilt.testing.checks import Check as Check
from fedquilt.testing.checks import Report as Report
from fedquilt.testing.checks import Result as Result
from fedquilt.testing.methods import check as check
from fedquilt.testing.methods import check_method as check_method
from fedquilt.testing.methods import checks_of as checks_of
from fedquilt.testing.toy import digits as digits
from fedquilt.testing.toy import fedavg as fedavg
from fedquilt.testing.toy import network as network
