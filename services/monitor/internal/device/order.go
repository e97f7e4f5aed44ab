package device

// Newer is rule O1: whether next, which arrived later, is newer than last. If
// it is not, why says what decided.
func Newer(last, next Sample) (newer bool, why Reason) {
	if last.Condition == Unknown {
		return true, 0
	}
	if next.Run != 0 && next.Run == last.Run {
		if next.Sequence == 0 || last.Sequence == 0 {
			return laterOccur(last, next)
		}
		switch {
		case next.Sequence == last.Sequence:
			return false, StaleRepeat
		case next.Sequence > last.Sequence && !restarted(next, last):
			return true, 0
		case next.Sequence < last.Sequence && restarted(last, next):
			return true, 0
		}
		return false, StaleSequence
	}
	switch later := next.Receive - last.Receive; {
	case later > reorder && !next.late():
		return true, 0
	case later < -reorder && !last.late():
		return false, StaleReceive
	}
	return laterOccur(last, next)
}

// restarted tells whether lower, which has the lower sequence, is from a
// counter that began anew.
func restarted(higher, lower Sample) bool {
	return lower.Occur > higher.Occur && lower.Receive-higher.Receive > reorder
}

// late tells a sample that took its time to be received.
func (s Sample) late() bool { return s.Receive-s.Occur > reorder }

func laterOccur(last, next Sample) (bool, Reason) {
	switch {
	case next.Occur > last.Occur:
		return true, 0
	case next.Occur < last.Occur:
		return false, StaleOccur
	case last.Condition == Online && next.Condition != Online:
		return false, StaleTie
	}
	return true, 0
}
