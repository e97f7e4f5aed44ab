package settings

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
)

// Options change what a write means.
type Options struct {
	// Prune makes the text all there is of each account it names: objects it
	// does not name go, and fields it leaves out get what a new object has.
	Prune bool
}

// Change is what a write does to a book. It is ordered and may be empty.
type Change struct {
	// Settings are the objects to store, Removed the keys to take away.
	Settings []*settingsv1.Setting
	Removed  []Key
	// Devices are the resolved settings that differ now, RemovedDevices the
	// keys ("account/device") of those that are gone.
	Devices        []*settingsv1.DeviceSettings
	RemovedDevices []string
	// Lines tell people what changed, Warnings what is stored though it looks
	// like a slip.
	Lines    []Line
	Warnings []Problem
}

// Line is one object that changed.
type Line struct {
	Action  string   `json:"action"` // created, changed or deleted
	Kind    Kind     `json:"kind"`
	Account string   `json:"account"`
	ID      string   `json:"id"`
	Version uint64   `json:"version,omitempty"`
	Fields  []string `json:"fields,omitempty"`
}

func (l Line) String() string {
	s := fmt.Sprintf("%s %s %s", l.Action, l.Kind, l.ID)
	if l.Kind != KindAccount {
		s += " of account " + l.Account
	}
	for i, f := range l.Fields {
		s += map[bool]string{true: ": ", false: ", "}[i == 0] + f
	}
	return s
}

// maxRecords bounds one Kafka transaction.
const maxRecords = 2_000_000

// Apply works out what a write changes. The book stays as it is: the change
// is stored, then committed or loaded. The error is [Problems], or [Conflict]
// where only versions are in the way.
func (b *Book) Apply(w *Write, o Options) (*Change, error) {
	s := newStage(b, &decoder{})
	s.prune = o.Prune
	s.write(w)
	if len(s.d.problems) == 0 {
		s.copyMasters()
		s.check()
	}
	if len(s.d.problems) > 0 {
		return nil, s.d.problems
	}
	if len(s.conflicts) > 0 {
		return nil, s.conflicts
	}
	return s.change()
}

// stage is one write in the making.
type stage struct {
	book      *Book
	d         *decoder
	prune     bool
	next      map[string]objects // accounts as they would be
	written   map[Key]place      // objects the write names
	conflicts Conflict
	warnings  []Problem
}

// place is where an object stands in the text.
type place struct {
	n       *node
	path    string
	version uint64
}

func newStage(b *Book, d *decoder) *stage {
	return &stage{book: b, d: d, next: map[string]objects{}, written: map[Key]place{}}
}

// view is an account as it would be, to be changed.
func (s *stage) view(account string) objects {
	if v, ok := s.next[account]; ok {
		return v
	}
	v := maps.Clone(s.book.accounts[account])
	if v == nil {
		v = objects{}
	}
	s.next[account] = v
	return v
}

// look is an account as it would be, to be read.
func (s *stage) look(account string) objects {
	if v, ok := s.next[account]; ok {
		return v
	}
	return s.book.accounts[account]
}

func (s *stage) write(w *Write) {
	for i, n := range w.accounts {
		s.account(n, fmt.Sprintf("accounts[%d]", i))
	}
}

func (s *stage) account(n *node, path string) {
	id, ok := byID(s.d, n, path)
	if !ok {
		return
	}
	key := Key{id, KindAccount, id}
	if !s.claim(key, n, path) {
		return
	}
	if s.d.deleted(n, path) {
		clear(s.view(id))
		return
	}
	obj := s.begin(key, freshAccount)
	table := accountTable(s.d, obj)
	for _, sec := range sections {
		table[sec.name] = func(n *node, path string) {
			s.d.each(n, path, sec.limit, func(_ int, n *node, path string) { s.object(id, sec, n, path) })
		}
	}
	s.d.object(n, path, table)
	if s.prune {
		view := s.view(id)
		for k, o := range view {
			if _, named := s.written[k]; !named && o.GetUser().GetMasterAccountId() == "" {
				delete(view, k)
			}
		}
	}
}

func (s *stage) object(account string, sec section, n *node, path string) {
	id, ok := sec.identify(s.d, n, path)
	if !ok {
		return
	}
	key := Key{account, sec.kind, id}
	if !s.claim(key, n, path) {
		return
	}
	if s.d.deleted(n, path) {
		switch o := s.look(account)[key]; {
		case o == nil:
			s.warn(n, path, "there is no %s %s to delete", sec.kind, id)
		case o.GetUser().GetMasterAccountId() != "":
			s.d.fail(n, path, "user %s is of the master account %s; delete the user there", id, o.GetUser().GetMasterAccountId())
			return
		}
		delete(s.view(account), key)
		return
	}
	s.d.object(n, path, sec.table(s.d, s.begin(key, sec.fresh), s.prune))
}

// claim notes that the write names an object, once, and checks its version.
func (s *stage) claim(key Key, n *node, path string) bool {
	if first, twice := s.written[key]; twice {
		s.d.fail(n, path, "%s %s is named twice, first on line %d; put both together", key.Kind, key.ID, first.n.line)
		return false
	}
	version := s.d.version(n, path)
	s.written[key] = place{n, path, version}
	if stored := s.book.Get(key).GetVersion(); version > 0 && version < stored {
		v := n.child("version")
		s.conflicts = append(s.conflicts, Problem{Line: v.line, Column: v.col, Field: join(path, "version"), Reason: fmt.Sprintf(
			"%s %s has version %d by now, this write is based on %d; get the settings again and repeat the change (or leave version out to write over it)", key.Kind, key.ID, stored, version)})
	}
	return true
}

// begin is the object that the write's fields are read over: a copy of what
// is stored, or a new one.
func (s *stage) begin(key Key, fresh func(id string) *settingsv1.Setting) *settingsv1.Setting {
	view := s.view(key.Account)
	obj := view[key]
	// A user copied from a master is not this account's to change; begin a
	// new one, and let copyMasters say that the id is taken.
	if s.prune || obj == nil || obj.GetUser().GetMasterAccountId() != "" {
		obj = fresh(key.ID)
		obj.AccountId = key.Account
	} else {
		obj = proto.CloneOf(obj)
	}
	view[key] = obj
	return obj
}

func (s *stage) warn(n *node, path, format string, args ...any) {
	if len(s.warnings) >= maxProblems {
		return
	}
	p := Problem{Field: path, Reason: fmt.Sprintf(format, args...)}
	if n != nil {
		p.Line, p.Column = n.line, n.col
	}
	s.warnings = append(s.warnings, p)
}

// copyMasters copies the users of master accounts into their sub-accounts
// (rule G2), so that a gateway needs nothing but the account's own settings.
// A copy carries its own zone, because an empty one is the master's.
func (s *stage) copyMasters() {
	ids := maps.Clone(s.next)
	for id := range s.book.accounts {
		ids[id] = nil
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		master := s.look(id).account(id).GetMaster()
		_, own := s.next[id]
		_, his := s.next[master]
		if !own && (master == "" || !his) {
			continue
		}
		want := objects{}
		if master != "" && master != id {
			zone := s.look(master).account(master).GetTimezone()
			for k, o := range s.look(master) {
				if k.Kind != KindUser || o.GetUser().GetMasterAccountId() != "" {
					continue
				}
				u := proto.CloneOf(o.GetUser())
				u.MasterAccountId, u.Timezone = master, cmp.Or(u.GetTimezone(), zone)
				want[Key{id, KindUser, k.ID}] = &settingsv1.Setting{AccountId: id, Object: &settingsv1.Setting_User{User: u}}
			}
		}
		view := s.view(id)
		for k, o := range view {
			if k.Kind == KindUser && o.GetUser().GetMasterAccountId() != "" && want[k] == nil {
				delete(view, k)
			}
		}
		for _, k := range slices.SortedFunc(maps.Keys(want), compareKeys) {
			if have := view[k]; have != nil && have.GetUser().GetMasterAccountId() == "" {
				s.at(k, "id").fail(s, "user %s is a user of the master account %s already, who would be copied into account %s under the same id; choose another id", k.ID, master, id)
				continue
			}
			view[k] = want[k]
		}
	}
}

// at finds the best place in the text for a problem with an object's field:
// the field, the object, or nothing where the write does not name it.
func (s *stage) at(k Key, field string) place {
	p, ok := s.written[k]
	if !ok {
		return place{path: k.String()}
	}
	p.path = join(p.path, field)
	if c := p.n.child(field); c != nil {
		p.n = c
	}
	return p
}

func (p place) fail(s *stage, format string, args ...any) { s.d.fail(p.n, p.path, format, args...) }

func (p place) warn(s *stage, format string, args ...any) { s.warn(p.n, p.path, format, args...) }

// change compares the accounts as they would be with the book.
func (s *stage) change() (*Change, error) {
	c := &Change{Warnings: s.warnings}
	for _, account := range slices.Sorted(maps.Keys(s.next)) {
		was, is := s.book.accounts[account], s.next[account]
		both := maps.Clone(is)
		maps.Copy(both, was)
		for _, k := range slices.SortedFunc(maps.Keys(both), compareKeys) {
			before, after := was[k], is[k]
			if after == nil {
				c.Removed = append(c.Removed, k)
				c.Lines = append(c.Lines, Line{Action: "deleted", Kind: k.Kind, Account: account, ID: k.ID})
				continue
			}
			if before == after {
				continue // not touched, and shared with the book
			}
			line := Line{Action: "created", Kind: k.Kind, Account: account, ID: k.ID}
			after.Version = max(1, s.written[k].version)
			if before != nil {
				after.Version = before.GetVersion()
				if proto.Equal(before, after) {
					continue
				}
				after.Version = max(after.GetVersion(), s.written[k].version) + 1
				line.Action, line.Fields = "changed", changedFields(before, after)
			}
			line.Version = after.GetVersion()
			c.Settings = append(c.Settings, after)
			c.Lines = append(c.Lines, line)
		}
		c.devices(resolveAll(account, was), resolveAll(account, is))
	}
	if n := len(c.Settings) + len(c.Removed) + len(c.Devices) + len(c.RemovedDevices); n > maxRecords {
		return nil, Problems{{Reason: fmt.Sprintf("the write changes %d records, more than the %d of one transaction; send the accounts in several writes", n, maxRecords)}}
	}
	return c, nil
}

// devices compares two lists that are ordered by device id.
func (c *Change) devices(was, is []*settingsv1.DeviceSettings) {
	old := make(map[string]*settingsv1.DeviceSettings, len(was))
	for _, d := range was {
		old[d.GetDeviceId()] = d
	}
	for _, d := range is {
		if !proto.Equal(old[d.GetDeviceId()], d) {
			c.Devices = append(c.Devices, d)
		}
		delete(old, d.GetDeviceId())
	}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		c.RemovedDevices = append(c.RemovedDevices, old[id].GetAccountId()+"/"+id)
	}
}
