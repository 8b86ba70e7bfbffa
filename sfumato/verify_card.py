"""python verify_card.py FOLDER --key KEY checks a published folder: signature, files, privacy.

KEY is the signer's public key, as text or a file, got from the signer; take this script from a release of Sfumato; neither
from the folder that is judged. The card's mechanisms, in the worst pair of neighbours of its relation, are composed on ever
finer grids, each of which bounds epsilon from above, until the bound is at most .2 % above what the card says. Not covered:
whether the signer ran these mechanisms. Needs dp-accounting and cryptography."""

import argparse
import base64
import hashlib
import json
import math
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

MARGIN, START, LEAST, FINER, GRIDS = 1.002, 1e-4, 1e-6, 4, 4  # of epsilon: margin, first interval; then finer ones
KNOWN = {  # what a mechanism may set; all else stays as dp-accounting has it
    "from_gaussian_mechanism": {"count", "standard_deviation", "sensitivity", "sampling_prob"},
    "from_discrete_gaussian_mechanism": {"count", "sigma", "sensitivity", "use_connect_dots"},
}
RELATIONS = {"add_remove": "ADD_OR_REMOVE_ONE", "replace_one": "REPLACE_ONE"}


def need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def read(card: Path) -> Any:
    """The content of a card; no field may stand twice, since a person may read the one and a program the other."""

    def once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(fields)) == len(fields), "a field of the card stands twice")
        return dict(fields)

    return json.loads(card.read_bytes(), object_pairs_hook=once)


def upper_bound(mechanisms: list[Any], delta: float, about: float, enough: float = 0.0) -> float:
    """An upper bound on epsilon by dp-accounting, as fine as it takes to come to `enough` or to settle."""
    bound = math.inf
    for grid in range(GRIDS):
        before, bound = bound, min(bound, composed(mechanisms, delta, max(START * about, LEAST) / FINER**grid))
        if bound <= enough or before - bound <= START * bound:
            break
    return bound


def composed(mechanisms: list[Any], delta: float, interval: float) -> float:
    """Epsilon of all mechanisms together on one grid; Gaussians without sampling compose exactly into one."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = {"value_discretization_interval": interval}
    total, mu_squared = pld.identity(**grid), 0.0
    for mechanism in mechanisms:
        arguments, count = dict(mechanism["arguments"]), mechanism["count"]
        if mechanism["constructor"] == "from_gaussian_mechanism" and "sampling_prob" not in arguments:
            mu_squared += count * (arguments["sensitivity"] / arguments["standard_deviation"]) ** 2
            continue
        if "neighboring_relation" in arguments:
            arguments["neighboring_relation"] = NeighboringRelation[arguments["neighboring_relation"]]
        total = total.compose(getattr(pld, mechanism["constructor"])(**arguments, **grid).self_compose(count))
    if mu_squared:
        total = total.compose(pld.from_gaussian_mechanism(1 / math.sqrt(mu_squared), **grid))
    return float(total.get_epsilon_for_delta(delta))


def check_privacy(card: dict[str, Any], _: Any) -> str:
    certificate = card["certificate"]
    need(bool(certificate and card["mechanisms"]), "there is no certificate: the folder was published on a claim")
    epsilon, delta, relation = (certificate[name] for name in ("epsilon", "delta", "relation"))
    need(0 < delta < 1 and 0 <= epsilon < math.inf and relation in RELATIONS, "the certificate means nothing")
    for one in card["mechanisms"]:
        arguments = {"count": one["count"], **one["arguments"]}
        stated = arguments.pop("neighboring_relation", None if "sampling_prob" in arguments else RELATIONS[relation])
        need(stated == RELATIONS[relation], f"{one} is not stated under {relation}")
        known = set(arguments) <= KNOWN.get(one["constructor"], set()) and isinstance(one["count"], int)
        need(known and all(0 < value < math.inf for value in arguments.values()), f"{one} is no mechanism known here")
    bound = upper_bound(card["mechanisms"], delta, epsilon, MARGIN * epsilon)
    verdict = f"dp-accounting {version('dp-accounting')}: epsilon <= {bound:.6g}; card: {epsilon:.6g} at {delta:g}, {relation}"
    need(bound <= MARGIN * epsilon + LEAST, verdict)
    return verdict


def check_signature(card: dict[str, Any], key: Any) -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    named = key is not None and not key.rstrip().endswith(("=", "-----")) and Path(key).is_file()  # else a key as text
    text = card["head"]["public_key"] if key is None else Path(key).read_text() if named else key
    raw = base64.b64decode("".join(line for line in text.splitlines() if "-----" not in line) + "===")[-32:]
    need(len(raw) == 32, f"the key {text[:60]!r} is neither a file that is there nor a public key")
    whose = f"signed by the key with fingerprint {hashlib.sha256(raw).hexdigest()}"
    for what, value in (("card", card), ("head of the ledger", card["head"])):
        fields = {name: one for name, one in value.items() if name != "signature"}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        try:
            Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(value["signature"]), text.encode())
        except Exception:
            raise ValueError(f"the {what} was changed or is not {whose}") from None
    return f"{whose}; {'signer not checked, for want of --key' if key is None else 'the one given'}"


def check_files(card: dict[str, Any], folder: Any) -> str:
    every = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]  # a link may be a folder's
    there = {path.relative_to(folder).as_posix(): path for path in every}
    for name in set(there) ^ {*card["files"], "card.json"}:
        raise ValueError(f"file {name} {'is not in the card' if name in there else 'is missing'}")
    for name, digest in sorted(card["files"].items()):
        need(hashlib.sha256(there[name].read_bytes()).hexdigest() == digest, f"file {name} was changed")
    return f"{len(card['files'])} files as they were published"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("card", type=lambda name: Path(name, "card.json") if Path(name).is_dir() else Path(name))
    parser.add_argument("--key")
    options, failed = parser.parse_args(arguments), 0
    for check, beside in ((check_signature, options.key), (check_files, options.card.parent), (check_privacy, None)):
        try:
            print("holds:", check(read(options.card), beside), flush=True)
        except Exception as error:
            failed = 1
            print("FAILS:", error if type(error) is ValueError else f"card or key unreadable: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
