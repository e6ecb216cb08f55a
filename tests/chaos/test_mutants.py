"""The mutants are patches of the present source; `make mutants` runs them."""

import pytest

from tests.chaos.mutants import MUTANTS, Mutant
from tests.cluster.tiers import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.name))
def test_every_mutant_fits_the_source(mutant: Mutant) -> None:
    source = (ROOT / "operator" / "ddpjob" / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    changed = source.replace(mutant.old, mutant.new)
    assert changed != source
    compile(changed, mutant.file, "exec")


def test_there_are_thirty_nine() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == 39
