"""Whether workers promise the same numbers.

Equal seeds and equal arithmetic give equal bits only between processes with the same numeric fingerprint; who mixes
them should read it before the run. Plans and runs say it in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping


def fingerprint_warnings(fingerprints: Mapping[str, str]) -> tuple[str, ...]:
    """One warning if workers differ in what equal numbers are promised for; an empty fingerprint is unknown."""
    known = {name: value for name, value in sorted(fingerprints.items()) if value}
    if len(set(known.values())) < 2:
        return ()
    said = ", ".join(f"{name}: {value}" for name, value in known.items())
    return (
        f"workers with different numeric fingerprints: results may differ from one process in the last bits ({said})",
    )
