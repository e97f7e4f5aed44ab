package account

import (
	"fmt"
	"time"
)

// State is all that is kept of one account: its parts, and what is derived
// from them so that nothing has to be searched. An account may have a hundred
// thousand mails waiting, so a step changes the state in place; each change is
// a part put or removed, by put alone, which is also how a state is restored
// and how a step is undone.
type State struct {
	undecided map[int64]*Undecided
	outages   map[string]*Outage
	recent    *Recent
	mails     map[string]*Mail

	// Derived:
	waiting    map[string]int64  // notification id -> offset in undecided
	decidable  Agenda[int64]     // offsets, by themselves
	recoveries map[string]int64  // outage id -> offset of its recovery, while users are awaited
	current    map[string]string // device -> id of its outage that has not ended
	starts     Agenda[string]    // Waiting mails, by Next
	ends       Agenda[string]    // all mails, by lease or expiry
	flying     int               // mails Attempting
}

// New is the state of an account of which nothing is known.
func New() *State {
	return &State{
		undecided:  make(map[int64]*Undecided),
		outages:    make(map[string]*Outage),
		mails:      make(map[string]*Mail),
		waiting:    make(map[string]int64),
		recoveries: make(map[string]int64),
		current:    make(map[string]string),
	}
}

// Part is what is kept under key; nil is nothing.
func (s *State) Part(key Key) Part {
	switch key.Kind {
	case KindUndecided:
		if p, ok := s.undecided[key.Offset]; ok {
			return p
		}
	case KindOutage:
		if p, ok := s.outages[key.ID]; ok {
			return p
		}
	case KindRecent:
		if s.recent != nil {
			return s.recent
		}
	case KindMail:
		if p, ok := s.mails[key.ID]; ok {
			return p
		}
	}
	return nil
}

// Put keeps part under key, or nothing when part is nil. Restoring an account
// is putting what was stored; undoing steps is putting what was there before.
func (s *State) Put(key Key, part Part) {
	switch key.Kind {
	case KindUndecided:
		u, _ := part.(*Undecided)
		s.putUndecided(key.Offset, u)
	case KindOutage:
		o, _ := part.(*Outage)
		s.putOutage(key.ID, o)
	case KindRecent:
		s.recent, _ = part.(*Recent)
	case KindMail:
		m, _ := part.(*Mail)
		s.putMail(key.ID, m)
	default:
		panic(fmt.Sprintf("account: put under %+v", key))
	}
}

func (s *State) putUndecided(offset int64, u *Undecided) {
	if old := s.undecided[offset]; old != nil {
		delete(s.undecided, offset)
		if s.waiting[old.Notification.ID] == offset {
			delete(s.waiting, old.Notification.ID)
		}
		if s.recoveries[old.Notification.Outage] == offset {
			delete(s.recoveries, old.Notification.Outage)
		}
	}
	if u != nil {
		s.undecided[offset] = u
		s.waiting[u.Notification.ID] = offset
		if len(u.Awaited) > 0 {
			s.recoveries[u.Notification.Outage] = offset
		}
	}
	s.refresh(offset)
}

func (s *State) putOutage(id string, o *Outage) {
	if old := s.outages[id]; old != nil && s.current[old.Device] == id {
		delete(s.current, old.Device)
	}
	delete(s.outages, id)
	if o != nil {
		s.outages[id] = o
		if !o.Ended {
			s.current[o.Device] = id
		}
	}
	s.refreshRecovery(id)
}

func (s *State) putMail(id string, m *Mail) {
	old := s.mails[id]
	if old != nil && old.Status == Attempting {
		s.flying--
	}
	s.starts.Remove(id)
	s.ends.Remove(id)
	delete(s.mails, id)
	if m != nil {
		s.mails[id] = m
		end := m.Expire
		switch m.Status {
		case Waiting:
			s.starts.Set(id, m.Next.UnixMilli())
		case Attempting:
			s.flying++
			end = m.Lease
		}
		s.ends.Set(id, end.UnixMilli())
		old = m
	}
	if old != nil {
		s.refreshRecovery(old.Outage)
	}
}

func (s *State) refreshRecovery(outage string) {
	if offset, ok := s.recoveries[outage]; ok {
		s.refresh(offset)
	}
}

// refresh finds out anew whether the notification at offset can be decided.
func (s *State) refresh(offset int64) {
	if u := s.undecided[offset]; u != nil && s.canDecide(u) {
		s.decidable.Set(offset, offset)
		return
	}
	s.decidable.Remove(offset)
}

// canDecide is false while the attempts that a recovery awaits are under way.
func (s *State) canDecide(u *Undecided) bool {
	for _, user := range u.Awaited {
		if s.toldOf(u.Notification.Outage, user) != underWay {
			return true
		}
	}
	return len(u.Awaited) == 0
}

type told uint8

const (
	untold told = iota
	wasTold
	underWay
)

// toldOf says whether user was told of an outage: by any of its mails.
func (s *State) toldOf(outage, user string) told {
	o := s.outages[outage]
	if o == nil {
		return untold
	}
	answer := untold
	for _, t := range o.Told {
		if t.User != user {
			continue
		}
		if t.Status == ToldYes {
			return wasTold
		}
		m := s.mails[t.Mail]
		switch {
		case t.Status == ToldNo || m == nil:
		case m.mayHaveArrived():
			return wasTold
		case m.Status == Attempting:
			answer = underWay
		}
	}
	return answer
}

// Decidable is the offset of the oldest notification that can be decided.
func (s *State) Decidable() (offset int64, ok bool) {
	offset, _, ok = s.decidable.Min()
	return offset, ok
}

// Oldest is that notification.
func (s *State) Oldest() *Undecided {
	offset, ok := s.Decidable()
	if !ok {
		return nil
	}
	return s.undecided[offset]
}

// Ends is the earliest instant at which a lease ends or a mail expires.
func (s *State) Ends() (at time.Time, ok bool) { return first(&s.ends) }

// Starts is the earliest instant at which a waiting mail may be tried.
func (s *State) Starts() (at time.Time, ok bool) { return first(&s.starts) }

func first(a *Agenda[string]) (time.Time, bool) {
	_, ms, ok := a.Min()
	if !ok {
		return time.Time{}, false
	}
	return time.UnixMilli(ms).UTC(), true
}

// Flying is how many attempts are under way.
func (s *State) Flying() int { return s.flying }

// Mails is how many are not settled.
func (s *State) Mails() int { return len(s.mails) }

// Empty says that nothing is kept.
func (s *State) Empty() bool {
	return len(s.undecided) == 0 && len(s.outages) == 0 && len(s.mails) == 0 && s.recent == nil
}
