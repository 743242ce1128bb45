"""How each kind of sink makes a delivery visible: one module a kind."""
