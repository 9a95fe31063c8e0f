"""The create request of a machine, read and checked in itself, before anything is looked up."""

from __future__ import annotations

from dataclasses import dataclass

from flashd.sim.cloud_payload import check_user_data, flag, integer, name_of, objects, optional_text, strings, text
from flashd.sim.cloud_types import NAME_MAX, Json, bad_request

MAX_PER_CALL = 20


@dataclass(frozen=True, slots=True)
class Order:
    names: tuple[str, ...]
    environment: str
    flavor: str
    image: str
    keypair: str
    user_data: str
    labels: tuple[str, ...]
    public_ip: bool
    port_randomization: bool
    security_rules: tuple[Json, ...]


def read_order(body: Json, user_data_max_base64: int) -> Order:
    """Raises bad_request for the first fault found."""
    name, count = name_of(body), integer(body, "count", 1, MAX_PER_CALL)
    names = (name,) if count == 1 else tuple(f"{name}-{number}" for number in range(1, count + 1))
    for wanted in names:
        if len(wanted) > NAME_MAX:
            raise bad_request(f"name: {wanted} is longer than {NAME_MAX}")
    user_data = optional_text(body, "user_data") or ""
    if user_data:
        check_user_data(user_data, user_data_max_base64)
    optional_text(body, "callback_url", 250)
    image = optional_text(body, "image_name")
    if image is None:
        raise bad_request("image_name: required unless the machine boots from a volume")
    return Order(
        names=names,
        environment=text(body, "environment_name"),
        flavor=text(body, "flavor_name"),
        image=image,
        keypair=text(body, "key_name"),
        user_data=user_data,
        labels=tuple(strings(body, "labels")),
        public_ip=flag(body, "assign_floating_ip", False),
        port_randomization=flag(body, "enable_port_randomization", True),
        security_rules=tuple(objects(body, "security_rules")),
    )
