package partition

// lag says that a row's record lacks repeats since a clock.
type lag struct {
	slot  int32
	since int64
}

// lags is a queue of them, which are pushed in order of the clock, with undo.
type lags struct {
	queue []lag
	head  int
	// What head and len(queue) were at the last commit.
	oldHead, oldLen int
}

func (l *lags) push(x lag) { l.queue = append(l.queue, x) }

// pop takes the first, if it lacks repeats since until or longer.
func (l *lags) pop(until int64) (lag, bool) {
	if l.head == len(l.queue) || l.queue[l.head].since > until {
		return lag{}, false
	}
	l.head++
	return l.queue[l.head-1], true
}

func (l *lags) commit() {
	if 2*l.head > len(l.queue) {
		l.queue = l.queue[:copy(l.queue, l.queue[l.head:])]
		l.head = 0
	}
	l.oldHead, l.oldLen = l.head, len(l.queue)
}

func (l *lags) abort() {
	l.queue = l.queue[:l.oldLen]
	l.head = l.oldHead
}
