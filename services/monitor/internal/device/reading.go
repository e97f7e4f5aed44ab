package device

// Bits of a status (rule S1), as the provider numbers them.
const (
	bitPassword   = 1 << 8
	bitInvalid    = 1 << 16
	bitOn         = 1 << 17
	bitStreaming  = 1 << 18
	bitRegistered = 1 << 20
)

// Reading is what a status says.
type Reading struct {
	// Condition is Unknown when it says nothing; Why tells the reason then.
	Condition Condition
	// Password: Offline because the device waits for its password.
	Password bool
	Why      Reason
}

// Read reads a bit mask (rule S1). A bridge has no stream.
func Read(bits uint32, bridge bool) Reading {
	switch {
	case bits == 0:
		return Reading{Why: StatusZero}
	case bits&bitInvalid != 0:
		return Reading{Why: StatusInvalid}
	case bits&bitOn == 0:
		return Reading{Condition: Off}
	case bits&bitRegistered == 0:
		return Reading{Condition: InternetOffline}
	case bridge, bits&bitStreaming != 0:
		return Reading{Condition: Online}
	default:
		return Reading{Condition: Offline, Password: bits&bitPassword != 0}
	}
}
