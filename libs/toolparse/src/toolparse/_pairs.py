from toolparse._pairs_py import (
    MORE as MORE,
)
from toolparse._pairs_py import (
    NAME as NAME,
)
from toolparse._pairs_py import (
    OK as OK,
)
from toolparse._pairs_py import (
    REPEATED as REPEATED,
)
from toolparse._pairs_py import (
    TAG as TAG,
)
from toolparse._pairs_py import (
    VALUE as VALUE,
)
from toolparse._pairs_py import (
    Scanned as Scanned,
)
from toolparse._pairs_py import (
    Shape as Shape,
)
from toolparse._pairs_py import (
    scan_call as scan_call,
)
