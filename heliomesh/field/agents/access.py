"""Who may say what to whom, as rules for Zenoh's access control, by the names in certificates.

A key is ``kind/LISTENER/from/SPEAKER``, and a sign of life ``alive/MEMBER/…``. Each member applies the rules to what
it hears and to what it says: connections are direct, so the other end of one is the speaker, or the listener.
"""

from collections.abc import Mapping
from typing import Any


def access_control(base: str, own: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Zenoh's settings for a member; ``names`` are the certificates' names of those with whom it may speak."""
    rules: list[dict[str, Any]] = []
    policies = []
    for other in names:
        of_other = [*_rules(base, "ingress", other, own), *_rules(base, "egress", own, other)]
        policies.append({"rules": [rule["id"] for rule in of_other], "subjects": [other]})
        rules += of_other
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [{"id": other, "cert_common_names": [name]} for other, name in names.items()],
        "policies": policies,
    }


def _rules(base: str, flow: str, speaker: str, listener: str) -> list[dict[str, Any]]:
    """What a speaker may say to a listener."""
    allowed = {
        f"*/{listener}/from/{speaker}": ["put", "query"],
        f"*/{speaker}/from/{listener}": ["reply"],
        f"*/{speaker}/from/*": ["declare_subscriber", "declare_queryable"],
        f"alive/{speaker}/*": ["liveliness_token"],
        "alive/*/*": ["declare_liveliness_subscriber", "liveliness_query"],
    }
    return [
        {
            "id": f"{speaker} to {listener}, {flow}, {key}",
            "permission": "allow",
            "flows": [flow],
            "messages": messages,
            "key_exprs": [f"{base}/{key}"],
        }
        for key, messages in allowed.items()
    ]
