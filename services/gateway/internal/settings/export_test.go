package settings

import (
	"maps"
	"slices"
)

// Accounts lists what is known, in ascending order.
func (v *View) Accounts() []string { return slices.Sorted(maps.Keys(v.accounts)) }
