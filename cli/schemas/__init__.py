"""What commands print with ``--json``, as types that it is held against, and the manual's page that is made of them."""
