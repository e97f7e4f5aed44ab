package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
)

// check looks at every account that the write touches as it would be: what an
// object needs, and whether what it refers to is there. A device that nobody
// has set up is still a device (rule H1), and a master account may come later:
// such references are warned of, not refused.
func (s *stage) check() {
	for _, account := range slices.Sorted(maps.Keys(s.next)) {
		view := s.next[account]
		for _, k := range slices.SortedFunc(maps.Keys(view), compareKeys) {
			o := view[k]
			switch k.Kind {
			case KindAccount:
				s.checkAccount(k, o.GetAccount())
			case KindUser:
				if o.GetUser().GetMasterAccountId() == "" {
					s.checkUser(k, o.GetUser())
				}
			case KindDevice:
				s.checkDevice(k, o.GetDevice(), view)
			case KindMute:
				m := o.GetMute()
				s.checkTarget(k, view, map[string]string{"device": m.GetDevice(), "site": m.GetSite(), "user": m.GetUser()})
				if m.GetUntilTime() == nil {
					s.at(k, "until").fail(s, "says when the mute ends, and is missing")
				}
			case KindMaintenance:
				s.checkMaintenance(k, o.GetMaintenance(), view)
			}
		}
	}
}

func (s *stage) checkAccount(k Key, a *settingsv1.Account) {
	if m := a.GetActiveMode(); m != "" && len(a.GetModes()) > 0 && !slices.Contains(a.GetModes(), m) {
		s.at(k, "activeMode").fail(s, "unknown mode %q%s", m, hint(m, a.GetModes()))
	}
	master := a.GetMaster()
	switch {
	case master == k.ID:
		s.at(k, "master").fail(s, "account %s cannot be its own master", master)
	case master != "" && s.look(master).account(master) == nil:
		s.at(k, "master").warn(s, "there is no account %s yet; its users get status of this one as soon as there is", master)
	}
}

func (s *stage) checkUser(k Key, u *settingsv1.User) {
	_, written := s.written[k]
	if u.GetEmail() == "" {
		s.at(k, "email").fail(s, "is missing; a new user needs an address")
	}
	if written && slices.Contains(u.GetLevels(), settingsv1.Level_SYSTEM) && !u.GetAdmin() {
		s.at(k, "levels").warn(s, "user %s holds SYSTEM but is no administrator and gets no status mail (rule G2); set admin: true if that is not meant", k.ID)
	}
}

func (s *stage) checkDevice(k Key, v *settingsv1.Device, view objects) {
	account := view.account(k.Account)
	if id := v.GetSite(); id != "" && view.site(k.Account, id) == nil {
		s.dangling(k, "site", Key{k.Account, KindSite, id}, "the account has no site %q%s", id, s.known(view, KindSite, id))
	}
	if id := v.GetBridge(); id != "" {
		b := view.device(k.Account, id)
		switch {
		case id == k.ID:
			s.at(k, "bridge").fail(s, "device %s cannot be its own bridge", id)
		case b == nil:
			if _, written := s.written[k]; written {
				s.at(k, "bridge").warn(s, "bridge %q is not set up in this account%s", id, s.known(bridges(view), KindDevice, id))
			}
		case b.GetKind() != settingsv1.Device_BRIDGE:
			s.at(k, "bridge").fail(s, "device %s is a camera; give it kind: BRIDGE or name another", id)
		}
	}
	for _, r := range v.GetRegions() {
		for _, u := range r.GetRecipients() {
			switch user := view.user(k.Account, u); {
			case user == nil:
				s.regionAt(k, r, "recipients", Key{k.Account, KindUser, u}).fail(s, "the account has no user %q%s", u, s.known(view, KindUser, u))
			case user.GetMasterAccountId() != "":
				s.regionAt(k, r, "recipients", Key{}).fail(s, "user %s is of the master account, and gets no motion (rule G2)", u)
			}
		}
		for _, m := range r.GetModes() {
			if len(account.GetModes()) > 0 && !slices.Contains(account.GetModes(), m) {
				s.regionAt(k, r, "modes", Key{k.Account, KindAccount, k.Account}).fail(s, "unknown mode %q%s", m, hint(m, account.GetModes()))
			}
		}
	}
}

func (s *stage) checkTarget(k Key, view objects, targets map[string]string) {
	var set []string
	for _, name := range []string{"device", "site", "user"} {
		id := targets[name]
		if id == "" {
			continue
		}
		set = append(set, name)
		switch kind := Kind(name); {
		case view[Key{k.Account, kind, id}] != nil:
		case kind == KindDevice:
			if _, written := s.written[k]; written {
				s.at(k, name).warn(s, "device %q is not set up in this account%s", id, s.known(view, kind, id))
			}
		default:
			s.dangling(k, name, Key{k.Account, kind, id}, "the account has no %s %q%s", name, id, s.known(view, kind, id))
		}
	}
	if len(set) != 1 {
		s.at(k, "id").fail(s, "%s %s names %s; exactly one device, site or user is wanted (write \"\" to take one away)", k.Kind, k.ID, counted(set))
	}
}

func (s *stage) checkMaintenance(k Key, m *settingsv1.Maintenance, view objects) {
	s.checkTarget(k, view, map[string]string{"device": m.GetDevice(), "site": m.GetSite()})
	switch {
	case m.GetStartTime() == nil:
		s.at(k, "start").fail(s, "is missing")
	case m.GetEndTime() == nil:
		s.at(k, "end").fail(s, "is missing")
	case !m.GetEndTime().AsTime().After(m.GetStartTime().AsTime()):
		s.at(k, "end").fail(s, "%s is not after the start %s", instantText(m.GetEndTime()), instantText(m.GetStartTime()))
	}
}

// dangling fails at the reference, or, where the write took away what an
// untouched object refers to, at that.
func (s *stage) dangling(k Key, field string, missing Key, format string, args ...any) {
	if _, written := s.written[k]; !written {
		if _, gone := s.written[missing]; gone {
			s.at(missing, "delete").fail(s, "%s %s is still used by %s %s; move or delete that first", missing.Kind, missing.ID, k.Kind, k.ID)
			return
		}
		s.at(k, field).fail(s, "%s %s of account %s still names %s %s, which this write takes away", k.Kind, k.ID, k.Account, missing.Kind, missing.ID)
		return
	}
	s.at(k, field).fail(s, format, args...)
}

// regionAt is the place of a region's field. missing is what it refers to,
// which may be all that the write names.
func (s *stage) regionAt(k Key, r *settingsv1.Region, field string, missing Key) place {
	p, ok := s.written[k]
	if !ok {
		if _, gone := s.written[missing]; gone {
			p = s.at(missing, "delete")
			p.path += " (region " + r.GetRegionId() + " of device " + k.ID + ")"
			return p
		}
		return place{path: k.String() + "/region " + r.GetRegionId()}
	}
	list := p.n.child("regions")
	if list == nil {
		return p
	}
	for i, item := range list.items {
		if id := item.child("id"); id != nil && id.text == r.GetRegionId() {
			p.n, p.path = item, fmt.Sprintf("%s[%d]", join(p.path, "regions"), i)
			if c := item.child(field); c != nil {
				p.n, p.path = c, join(p.path, field)
			}
			return p
		}
	}
	return p
}

// known ends a message about a reference: what looks like it.
func (s *stage) known(view objects, kind Kind, id string) string {
	var ids []string
	for k := range view {
		if k.Kind == kind && k.ID != id {
			ids = append(ids, k.ID)
		}
	}
	slices.Sort(ids)
	if n := nearest(id, ids); n != "" {
		return "; did you mean \"" + n + "\"?"
	}
	return ""
}

func bridges(view objects) objects {
	out := objects{}
	for k, o := range view {
		if o.GetDevice().GetKind() == settingsv1.Device_BRIDGE {
			out[k] = o
		}
	}
	return out
}

// textNames are fields whose name in the text is not the message's.
var textNames = map[string]string{"digests": "digest", "untilTime": "until", "startTime": "start", "endTime": "end", "masterAccountId": "master"}

// changedFields names the fields of an object that differ, as the text does.
func changedFields(before, after *settingsv1.Setting) []string {
	a, b := object(before), object(after)
	var out []string
	for i := range a.Descriptor().Fields().Len() {
		f := a.Descriptor().Fields().Get(i)
		if a.Has(f) == b.Has(f) && a.Get(f).Equal(b.Get(f)) {
			continue
		}
		name := f.JSONName()
		if t, ok := textNames[name]; ok {
			name = t
		}
		out = append(out, name)
	}
	return out
}

func object(s *settingsv1.Setting) protoreflect.Message {
	m := s.ProtoReflect()
	return m.Get(m.WhichOneof(m.Descriptor().Oneofs().ByName("object"))).Message()
}

func instantText(t *timestamppb.Timestamp) string {
	return strings.Replace(t.AsTime().UTC().Format("2006-01-02T15:04:05.000Z"), ".000Z", "Z", 1)
}
