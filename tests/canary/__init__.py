"""Facts of other projects that the design rests on. `make canary` checks them with other releases; see docs/canary.md."""
