"""All kinds."""

from tests.api.failures import around, plain, ranks

KINDS = (*plain.KINDS, *ranks.KINDS, *around.KINDS)
