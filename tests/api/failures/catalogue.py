"""All kinds."""

from tests.api.failures import around, plain, ranks
from tests.api.failures.table import cold, starts_warm

KINDS = (*plain.KINDS, *ranks.KINDS, *around.KINDS)
# Those that start warm, once more, cold: the same must be said of them.
COLD_KINDS = tuple(cold(kind) for kind in KINDS if starts_warm(kind))
