"""Which network addresses a stranger's list may send us to: public ones only.

    is_public("93.184.216.34")      # True
    is_public("::ffff:127.0.0.1")   # False: loopback, whatever it is dressed as

Standard library only: it runs in img2dataset's environment too.
"""

import ipaddress

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # a host without IPv4 is given public IPv4 addresses in this form
_SHARED = ipaddress.IPv4Network("100.64.0.0/10")  # inside providers' and clouds' networks


def is_public(address: str) -> bool:
    """Whether a literal IPv4 or IPv6 address is on the public internet.

    Private, loopback, link-local, shared, multicast and reserved ones are not, nor an IPv6 address around such an IPv4
    address (mapped, 6to4, Teredo, NAT64).

    Raises:
        ValueError: `address` is no literal address.
    """
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global and not found.is_multicast and not found.is_reserved and found not in _SHARED
    if found in _NAT64:
        return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    if found.ipv4_mapped:
        return is_public(str(found.ipv4_mapped))
    within = [found.sixtofour, *(found.teredo or ())]
    inner = all(is_public(str(one)) for one in within if one is not None)
    return inner and found.is_global and not found.is_multicast and not found.is_reserved and not found.is_site_local
