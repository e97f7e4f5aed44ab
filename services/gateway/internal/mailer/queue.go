package mailer

import "slices"

// queue has the jobs that wait, in turn by account. Not safe for use at once.
type queue struct {
	// share is how many jobs of one account may be under way.
	share int
	// turns has each account with a job that waits, the next first.
	turns   []string
	waiting map[string][]*job
	busy    map[string]int
}

func newQueue(share int) queue {
	return queue{share: share, waiting: make(map[string][]*job), busy: make(map[string]int)}
}

func (q *queue) push(j *job) {
	a := j.mail.GetAccountId()
	if len(q.waiting[a]) == 0 {
		q.turns = append(q.turns, a)
	}
	q.waiting[a] = append(q.waiting[a], j)
}

// pop takes the oldest job of the first account that has not its share yet;
// done must follow. It is nil if there is none.
func (q *queue) pop() *job {
	for i, a := range q.turns {
		if q.busy[a] >= q.share {
			continue
		}
		jobs := q.waiting[a]
		q.turns = slices.Delete(q.turns, i, i+1)
		if len(jobs) > 1 {
			q.waiting[a] = jobs[1:]
			q.turns = append(q.turns, a)
		} else {
			delete(q.waiting, a)
		}
		q.busy[a]++
		return jobs[0]
	}
	return nil
}

func (q *queue) done(j *job) {
	a := j.mail.GetAccountId()
	if q.busy[a]--; q.busy[a] == 0 {
		delete(q.busy, a)
	}
}

// empty takes out all that wait.
func (q *queue) empty() []*job {
	var all []*job
	for _, a := range q.turns {
		all = append(all, q.waiting[a]...)
	}
	q.turns = nil
	clear(q.waiting)
	return all
}
