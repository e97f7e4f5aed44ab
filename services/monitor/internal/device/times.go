package device

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute

	aheadLimit  = 10 * second   // T2: more than this is marked
	oldestOccur = 7 * 24 * hour // T2
	settleLimit = minute        // T4: what the rest of a late burst may take
	lateLimit   = 15 * minute   // M3
	spanReach   = hour          // M2
	reorder     = minute        // O1
)

// ReceiveTime is rule T1: when a record appended at appended was first
// received. original is what the record carries, 0 for nothing; it is believed
// only of a record that was kept (spooled or restated), and if it is not after
// the append time.
func ReceiveTime(original, appended int64, kept bool) int64 {
	if kept && original > 0 && original <= appended {
		return original
	}
	return appended
}

// OccurTime is rule T2: when something happened that the source says happened
// at said (0 or less: it does not say) and that was received at receive. marked
// means that the source was not believed.
func OccurTime(said, receive int64) (occur int64, marked bool) {
	switch {
	case said <= 0, said < receive-oldestOccur:
		return receive, true
	case said > receive:
		return receive, said-receive > aheadLimit
	}
	return said, false
}
