package account

import (
	"slices"
	"time"
)

// decide decides the oldest notification that can be.
func (st *step) decide(trace string) {
	u := st.Oldest()
	if u == nil {
		panic("account: Decide with nothing to decide")
	}
	further := len(u.Awaited) > 0
	decided := Decided{At: st.at, Notification: u.Notification, Read: u.Read, Trace: trace, Further: further}
	place := len(st.effects)
	st.effect(decided) // first in line; its outcomes come below
	if !further {
		st.keep(st.recent.with(u.Notification.ID))
	}
	var out outcomes
	if u.Notification.Type == Online {
		st.recover(u, trace, &out)
	} else {
		st.drop(u.Key())
		st.tell(u.Notification, trace, &out)
	}
	decided.Outcomes = out.list()
	st.effects[place] = decided
}

// tell decides an alert or an outage.
func (st *step) tell(n *Notification, trace string, out *outcomes) {
	if !st.settings.Known {
		out.add(UnableToGetSettings, "", "")
		return
	}
	var mails []*Mail
	for i := range st.settings.Users {
		user := &st.settings.Users[i]
		if reason := st.check(n, user); reason != Mailed {
			out.add(reason, user.ID, "")
			continue
		}
		m := st.mail(n, user, trace)
		out.add(Mailed, user.ID, m.ID)
		mails = append(mails, m)
	}
	if len(st.settings.Users) == 0 {
		out.add(NoNotificationActions, "", "") // nobody to act for
	}
	if n.Outage != "" && mails != nil {
		st.remember(n, mails)
	}
}

// check is the first reason not to mail n to u, or Mailed. The order is that
// of the rules: G1, G2, (G3,) G4, and then what would keep a mail that is
// allowed: M3.
func (st *step) check(n *Notification, u *User) Reason {
	switch {
	case st.switchedOff(n, u):
		return NotificationsDisabled
	case !st.concerns(n, u):
		return NoNotificationActions
	case !u.Windows.Contain(st.at, st.settings.zone(u)):
		return OutsideUsersSchedule
	case st.late(n):
		return TooLate
	}
	return Mailed
}

// switchedOff is rule G1: the account's and the user's switches, and what the
// user unsubscribed from. The account's system notifications are status only.
func (st *step) switchedOff(n *Notification, u *User) bool {
	return !st.settings.Active ||
		n.Type != Alert && !st.settings.StatusMails ||
		!u.Enabled ||
		slices.Contains(u.StoppedTypes, n.Type) ||
		slices.Contains(u.StoppedDevices, n.Device)
}

// concerns is rule G2.
func (st *step) concerns(n *Notification, u *User) bool {
	if n.Type != Alert {
		return u.Admin && u.Levels&System != 0
	}
	r := st.settings.region(n.Device, n.Region)
	switch {
	case u.Foreign, !r.Enabled:
		return false
	case len(r.Modes) > 0 && !slices.Contains(r.Modes, st.settings.Mode):
		return false
	case len(r.Recipients) > 0:
		return slices.Contains(r.Recipients, u.ID)
	}
	return u.Levels&r.Level != 0
}

// late is rule M3, which is about alerts.
func (st *step) late(n *Notification) bool {
	return n.Type == Alert && (n.Stage == Late || st.at.Sub(n.Since) > st.LateAfter)
}

// recover decides a recovery (rule G8): it goes to exactly those who were told
// of the outage, whatever their windows and levels are by now; switches win.
func (st *step) recover(u *Undecided, trace string, out *outcomes) {
	n := u.Notification
	outage := n.Outage
	candidates := u.Awaited
	if candidates == nil {
		candidates = st.candidates(outage)
		if o := st.outages[outage]; o != nil && o.Ended {
			outage = "" // another recovery has its people already
		}
		st.endOutage(outage)
	}
	if !st.settings.Known {
		out.add(UnableToGetSettings, "", "")
		candidates = nil
	} else if len(candidates) == 0 {
		out.add(NotToldOfOutage, "", "") // nobody there
	}
	var awaited []string
	for _, id := range candidates {
		user := st.settings.user(id)
		if user == nil || st.switchedOff(n, user) {
			out.add(NotificationsDisabled, id, "")
			continue
		}
		switch st.toldOf(outage, id) {
		case underWay:
			awaited = append(awaited, id)
		case wasTold:
			out.add(Mailed, id, st.mail(n, user, trace).ID)
		case untold:
			out.add(NotToldOfOutage, id, "")
		}
	}
	if len(awaited) > 0 {
		rest := *u
		rest.Awaited = awaited
		st.keep(&rest)
		return
	}
	st.drop(u.Key())
	if st.outages[outage] != nil {
		st.drop(Key{Kind: KindOutage, ID: outage})
	}
}

// candidates for a recovery, in ascending order: the account's users, and who
// was mailed about the outage but is no user any more.
func (st *step) candidates(outage string) []string {
	var ids []string
	for i := range st.settings.Users {
		ids = append(ids, st.settings.Users[i].ID)
	}
	if o := st.outages[outage]; o != nil {
		for _, t := range o.Told {
			ids = append(ids, t.User)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// endOutage withdraws the mails about an outage that nobody needs any more
// (rule G8). An attempt under way cannot be: it will be the last.
func (st *step) endOutage(id string) {
	o := st.outages[id]
	if o == nil || o.Ended {
		return
	}
	ended := *o
	ended.Ended = true
	st.keep(&ended)
	for _, t := range o.Told {
		m := st.mails[t.Mail]
		if m == nil || m.Status == Unanswered {
			continue
		}
		over := *m
		over.Over = true
		if m.Status == Attempting {
			st.keep(&over)
			continue
		}
		st.conclude(&over, 0, nil)
	}
}

// mail decides a mail.
func (st *step) mail(n *Notification, u *User, trace string) *Mail {
	id := MailID(n.ID, u.ID)
	if m := st.mails[id]; m != nil {
		return m // a notification that Recent forgot: its mail is on its way
	}
	m := &Mail{
		ID: id, User: u.ID, Type: n.Type,
		Address: u.Address, Name: u.Name, Zone: st.settings.zone(u).String(), Account: st.settings.Name,
		Items:     []Item{st.item(n, trace)},
		MessageID: id + "@" + st.MessageDomain, Date: st.at,
		Outage: n.Outage, References: st.thread(n.Outage, u.ID),
		Status: Waiting, Next: st.at, Expire: st.expire(n),
	}
	st.keep(m)
	return m
}

func (st *step) item(n *Notification, trace string) Item {
	device := st.settings.Devices[n.Device]
	item := Item{Notification: n, Device: device.Name, Site: st.settings.Sites[device.Site], Trace: trace}
	if n.Type == Alert {
		item.Region = st.settings.region(n.Device, n.Region).Name
	}
	return item
}

// expire ends the tries of a mail about n. An alert that is decided just before its
// limit has the time of one attempt, whatever else is waiting.
func (st *step) expire(n *Notification) time.Time {
	if n.Type != Alert {
		return st.at.Add(st.StatusAge)
	}
	limit, least := n.Since.Add(st.AlertAge), st.at.Add(st.Lease)
	if limit.Before(least) {
		return least
	}
	return limit
}

// thread lists the Message-IDs of what user was, or may be, sent about an outage.
func (st *step) thread(outage, user string) []string {
	var ids []string
	if o := st.outages[outage]; o != nil {
		for _, t := range o.Told {
			if t.User == user && t.Status != ToldNo {
				ids = append(ids, t.MessageID)
			}
		}
	}
	return ids
}

// remember keeps who is mailed about an outage. A device has one outage at a
// time: an older one whose end never came is forgotten.
func (st *step) remember(n *Notification, mails []*Mail) {
	o := &Outage{ID: n.Outage, Device: n.Device}
	if known := st.outages[n.Outage]; known != nil {
		*o = *known
		o.Told = slices.Clone(known.Told)
	} else if old, ok := st.current[n.Device]; ok {
		st.drop(Key{Kind: KindOutage, ID: old})
	}
	for _, m := range mails {
		if !slices.ContainsFunc(o.Told, func(t Told) bool { return t.Mail == m.ID }) {
			o.Told = append(o.Told, Told{User: m.User, Mail: m.ID, MessageID: m.MessageID})
		}
	}
	st.keep(o)
}

// outcomes groups by reason; recipients come in ascending order of their ids.
type outcomes [reasonsOfDecisions]Outcome

func (o *outcomes) add(reason Reason, user, mail string) {
	o[reason].Reason = reason
	if user != "" {
		o[reason].Users = append(o[reason].Users, user)
	}
	if mail != "" {
		o[reason].Mails = append(o[reason].Mails, mail)
	}
}

// list is in the order of reasons. It is empty only for a recovery of which
// every recipient is awaited.
func (o *outcomes) list() []Outcome {
	var list []Outcome
	for _, outcome := range o {
		if outcome.Reason != 0 {
			list = append(list, outcome)
		}
	}
	return list
}
