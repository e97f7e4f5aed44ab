package ledger

import (
	"slices"

	"github.com/tocsin/tocsin/services/gateway/internal/account"
)

// book holds the accounts of a partition, which of them has something to do
// when, and what they were before the transaction under way.
type book struct {
	accounts map[string]*account.State
	// Accounts by: the next lease or life that ends; the offset of the oldest
	// notification that can be decided; and, for each number of attempts under
	// way below an account's share, the next mail to be tried.
	ends      account.Agenda[string]
	undecided account.Agenda[string]
	starts    []account.Agenda[string]
	// flights is how many attempts each account has under way, where any; flying
	// is their sum.
	flights map[string]int
	flying  int
	mails   int

	// touched are the parts changed since the last commit, in the order of
	// their first change, with what they were before.
	touched []change
	known   map[place]bool
}

type place struct {
	account string
	key     account.Key
}

type change struct {
	place
	before account.Part
}

// newBook is for accounts with at most share attempts under way at a time.
func newBook(share int) *book {
	return &book{
		accounts: map[string]*account.State{},
		starts:   make([]account.Agenda[string], share),
		flights:  map[string]int{},
		known:    map[place]bool{},
	}
}

func (b *book) state(id string) *account.State {
	s := b.accounts[id]
	if s == nil {
		s = account.New()
		b.accounts[id] = s
	}
	return s
}

// restore puts a part that was stored.
func (b *book) restore(id string, key account.Key, part account.Part) {
	b.put(id, key, part)
	b.index(id)
}

func (b *book) put(id string, key account.Key, part account.Part) {
	s := b.state(id)
	b.mails -= s.Mails()
	s.Put(key, part)
	b.mails += s.Mails()
}

// step runs the machine of one account.
func (b *book) step(rules account.Rules, set *account.Settings, id string, in account.Input) []account.Effect {
	s := b.state(id)
	b.mails -= s.Mails()
	effects := rules.Step(s, set, in)
	b.mails += s.Mails()
	for _, effect := range effects {
		if c, ok := effect.(account.Changed); ok {
			b.touch(place{id, c.Key}, c.Before)
		}
	}
	b.index(id)
	return effects
}

// touch notes what a part was before its first change.
func (b *book) touch(at place, before account.Part) {
	if !b.known[at] {
		b.known[at] = true
		b.touched = append(b.touched, change{at, before})
	}
}

// index finds out anew when the account has something to do, and forgets an
// account of which nothing is kept.
func (b *book) index(id string) {
	was := b.flights[id]
	if was < len(b.starts) {
		b.starts[was].Remove(id)
	}
	b.flying -= was
	delete(b.flights, id)
	b.ends.Remove(id)
	b.undecided.Remove(id)

	s := b.accounts[id]
	if s.Empty() {
		delete(b.accounts, id)
		return
	}
	if at, ok := s.Ends(); ok {
		b.ends.Set(id, at.UnixMilli())
	}
	if offset, ok := s.Decidable(); ok {
		b.undecided.Set(id, offset)
	}
	if n := s.Flying(); n > 0 {
		b.flights[id] = n
		b.flying += n
	}
	if at, ok := s.Starts(); ok && s.Flying() < len(b.starts) {
		b.starts[s.Flying()].Set(id, at.UnixMilli())
	}
}

// fairest is the account whose turn it is to try a mail at or before now: the
// one with the fewest attempts under way, and of those the one whose mail has
// waited longest.
func (b *book) fairest(now int64) (id string, ok bool) {
	for i := range b.starts {
		if id, at, ok := b.starts[i].Min(); ok && at <= now {
			return id, true
		}
	}
	return "", false
}

// nextStart is the account that may try a mail next, and when.
func (b *book) nextStart() (id string, at int64, ok bool) {
	for i := range b.starts {
		if first, t, found := b.starts[i].Min(); found && (!ok || t < at) {
			id, at, ok = first, t, true
		}
	}
	return id, at, ok
}

func (b *book) held() Held { return Held{len(b.accounts), b.mails, b.flying} }

// now is what is kept at a place; nil is nothing.
func (b *book) now(at place) account.Part {
	if s := b.accounts[at.account]; s != nil {
		return s.Part(at.key)
	}
	return nil
}

func (b *book) commit() {
	b.touched = b.touched[:0]
	clear(b.known)
}

// abort puts back what was, the last change first.
func (b *book) abort() {
	for _, c := range slices.Backward(b.touched) {
		b.put(c.account, c.key, c.before)
	}
	for _, c := range b.touched {
		if b.accounts[c.account] != nil {
			b.index(c.account)
		}
	}
	b.commit()
}
