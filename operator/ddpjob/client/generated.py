"""Names as the API server makes them of `generateName`, for objects that must be known before."""

import secrets

from ddpjob.json_depth import Body

# What is appended: so many letters, of which no words are made.
LETTERS, GENERATED = "bcdfghjklmnpqrstvwxz2456789", 5


def named(job: Body) -> Body:
    """Return the job with a name: its own, or one that is made of `generateName`."""
    metadata = dict(job["metadata"])
    start = metadata.pop("generateName", None)
    if start and not metadata.get("name"):
        letters = "".join(secrets.choice(LETTERS) for _ in range(GENERATED))
        metadata["name"] = f"{start}{letters}"
    return {**job, "metadata": metadata}
