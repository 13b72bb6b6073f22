"""Tables that earlier commits wrote, and the programs that wrote them."""
