package settings

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
)

// Write is a text that was read: which objects it names, and which of their
// fields. It says nothing of what is stored; [Book.Apply] brings the two
// together. It is never changed, so it may be applied again.
type Write struct {
	accounts []*node
}

// Parse reads YAML or JSON. An error is [Problems]: each names line, column,
// field and the way out. References, versions and what a new object needs are
// checked when the write is applied.
func Parse(text []byte) (*Write, error) {
	root, err := readTree(text)
	if err != nil {
		return nil, err
	}
	d := &decoder{}
	w := &Write{}
	d.object(root, "", fields{"accounts": func(n *node, path string) {
		if d.each(n, path, 1<<20, func(int, *node, string) {}) {
			w.accounts = n.items
		}
	}})
	if len(d.problems) == 0 && len(root.entries) == 0 {
		d.fail(root, "", `the text is empty; it begins with "accounts:"`)
	}
	if len(d.problems) > 0 {
		return nil, d.problems
	}
	// Every value is read once over an empty book: whatever is wrong with it
	// does not depend on what is stored.
	s := newStage(NewBook(), d)
	s.write(w)
	if len(d.problems) > 0 {
		return nil, d.problems
	}
	return w, nil
}

// Always is the window of a new user: every day, all day (contract: Settings).
func Always() []*settingsv1.Window {
	return []*settingsv1.Window{{
		Days: []settingsv1.Window_Day{
			settingsv1.Window_MON, settingsv1.Window_TUE, settingsv1.Window_WED, settingsv1.Window_THU,
			settingsv1.Window_FRI, settingsv1.Window_SAT, settingsv1.Window_SUN,
		},
		EndMinutes: 24 * 60,
	}}
}

// section is how one kind of object stands in an account's text.
type section struct {
	name  string
	kind  Kind
	limit int
	// identify is the object's id; it reports why there is none.
	identify func(d *decoder, n *node, path string) (string, bool)
	// fresh is a new object with the defaults of what a write leaves out.
	fresh func(id string) *settingsv1.Setting
	// table reads the fields over an object.
	table func(d *decoder, s *settingsv1.Setting, prune bool) fields
}

// sections are in the order in which they are written and exported.
var sections = []section{
	{name: "sites", kind: KindSite, limit: 100_000, identify: byID, fresh: freshSite, table: siteTable},
	{name: "users", kind: KindUser, limit: 100_000, identify: byID, fresh: freshUser, table: userTable},
	{name: "devices", kind: KindDevice, limit: 1_000_000, identify: byID, fresh: freshDevice, table: deviceTable},
	{name: "mutes", kind: KindMute, limit: 100_000, identify: byTarget, fresh: freshMute, table: muteTable},
	{name: "maintenance", kind: KindMaintenance, limit: 100_000, identify: byTargetAndStart, fresh: freshMaintenance, table: maintenanceTable},
}

func freshAccount(id string) *settingsv1.Setting {
	return &settingsv1.Setting{Object: &settingsv1.Setting_Account{Account: &settingsv1.Account{AccountId: id, Active: true, SystemNotifications: true}}}
}

func freshSite(id string) *settingsv1.Setting {
	return &settingsv1.Setting{Object: &settingsv1.Setting_Site{Site: &settingsv1.Site{SiteId: id}}}
}

func freshUser(id string) *settingsv1.Setting {
	return &settingsv1.Setting{Object: &settingsv1.Setting_User{User: &settingsv1.User{UserId: id, Enabled: true, Windows: Always()}}}
}

func freshDevice(id string) *settingsv1.Setting {
	return &settingsv1.Setting{Object: &settingsv1.Setting_Device{Device: &settingsv1.Device{DeviceId: id}}}
}

func freshMute(id string) *settingsv1.Setting {
	return &settingsv1.Setting{Object: &settingsv1.Setting_Mute{Mute: &settingsv1.Mute{MuteId: id}}}
}

func freshMaintenance(id string) *settingsv1.Setting {
	return &settingsv1.Setting{Object: &settingsv1.Setting_Maintenance{Maintenance: &settingsv1.Maintenance{MaintenanceId: id}}}
}

func freshRegion(id string) *settingsv1.Region {
	return &settingsv1.Region{RegionId: id, Level: settingsv1.Level_LOW, Enabled: true}
}

// head are the fields that every object has and that are read beforehand.
func head(table fields) fields {
	table["id"], table["version"], table["delete"] = skip, skip, skip
	return table
}

func accountTable(d *decoder, s *settingsv1.Setting) fields {
	a := s.GetAccount()
	return head(fields{
		"name": d.name(&a.Name), "timezone": d.zone(&a.Timezone), "dataCenter": d.reference(&a.DataCenter),
		"active": d.boolean(&a.Active), "systemNotifications": d.boolean(&a.SystemNotifications),
		"modes": d.names(&a.Modes, maxModes), "activeMode": d.name(&a.ActiveMode),
		"master": d.reference(&a.Master), "holds": d.holds(&a.Holds),
	})
}

func siteTable(d *decoder, s *settingsv1.Setting, _ bool) fields {
	o := s.GetSite()
	return head(fields{"name": d.name(&o.Name), "holds": d.holds(&o.Holds)})
}

func userTable(d *decoder, s *settingsv1.Setting, _ bool) fields {
	u := s.GetUser()
	return head(fields{
		"name": d.name(&u.Name), "email": d.email(&u.Email), "enabled": d.boolean(&u.Enabled), "admin": d.boolean(&u.Admin),
		"levels": d.levels(&u.Levels), "timezone": d.zone(&u.Timezone), "windows": d.windows(&u.Windows),
		"digest": d.digests(&u.Digests), "unsubscribed": d.unsubscribed(&u.Unsubscribed),
	})
}

func deviceTable(d *decoder, s *settingsv1.Setting, prune bool) fields {
	v := s.GetDevice()
	return head(fields{
		"name": d.name(&v.Name), "bridge": d.reference(&v.Bridge), "site": d.reference(&v.Site), "holds": d.holds(&v.Holds),
		"kind": func(n *node, path string) {
			if i, ok := d.word(n, path, "kind", kindNames); ok {
				v.Kind = settingsv1.Device_Kind(i)
			}
		},
		"silentAfter": func(n *node, path string) {
			if t, ok := d.readDuration(n, path, maxSilence); ok {
				v.SilentAfter = optional(t)
			}
		},
		"regions": d.regions(&v.Regions, prune),
	})
}

// optional has one form for zero, so that equal settings are equal bytes.
func optional(t time.Duration) *durationpb.Duration {
	if t == 0 {
		return nil
	}
	return durationpb.New(t)
}

// regions merges by id: a region left out stays, unless the write prunes or
// the list is empty.
func (d *decoder) regions(into *[]*settingsv1.Region, prune bool) field {
	return func(n *node, path string) {
		var named []string
		out := slices.Clone(*into)
		if !d.each(n, path, maxRegions, func(_ int, n *node, path string) {
			id, ok := byID(d, n, path)
			if !ok {
				return
			}
			if slices.Contains(named, id) {
				d.fail(n, join(path, "id"), "region %q is named twice", id)
				return
			}
			named = append(named, id)
			i := slices.IndexFunc(out, func(r *settingsv1.Region) bool { return r.GetRegionId() == id })
			if d.deleted(n, path) {
				if i >= 0 {
					out = slices.Delete(out, i, i+1)
				}
				return
			}
			switch {
			case i < 0:
				out = append(out, freshRegion(id))
				i = len(out) - 1
			case prune:
				out[i] = freshRegion(id)
			}
			d.object(n, path, regionTable(d, out[i]))
		}) {
			return
		}
		if prune || len(n.items) == 0 {
			out = slices.DeleteFunc(out, func(r *settingsv1.Region) bool { return !slices.Contains(named, r.GetRegionId()) })
		}
		if len(out) > maxRegions {
			d.fail(n, path, "the device would have %d regions, more than the %d that are kept", len(out), maxRegions)
		}
		*into = out
	}
}

func regionTable(d *decoder, r *settingsv1.Region) fields {
	return fields{
		"id": skip, "delete": skip,
		"name": d.name(&r.Name), "enabled": d.boolean(&r.Enabled), "modes": d.names(&r.Modes, maxModes),
		"recipients": d.ids(&r.Recipients, maxPersons), "maxPerHour": d.count(&r.MaxPerHour, maxPerHour),
		"level": func(n *node, path string) {
			if i, ok := d.word(n, path, "level of a region", levelNames[:2]); ok {
				r.Level = settingsv1.Level_Value(i + 1)
			}
		},
		"rearm": func(n *node, path string) {
			if t, ok := d.readDuration(n, path, maxRearm); ok {
				r.Rearm = optional(t)
			}
		},
	}
}

func muteTable(d *decoder, s *settingsv1.Setting, _ bool) fields {
	m := s.GetMute()
	return head(fields{
		"device": d.reference(&m.Device), "site": d.reference(&m.Site), "user": d.reference(&m.User),
		"until": d.instant(&m.UntilTime), "why": d.name(&m.Why),
	})
}

func maintenanceTable(d *decoder, s *settingsv1.Setting, _ bool) fields {
	m := s.GetMaintenance()
	return head(fields{
		"device": d.reference(&m.Device), "site": d.reference(&m.Site),
		"start": d.instant(&m.StartTime), "end": d.instant(&m.EndTime),
	})
}

// byID is the id of an object that must have one.
func byID(d *decoder, n *node, path string) (string, bool) {
	if !d.is(n, path, mapping) {
		return "", false
	}
	id := n.child("id")
	if id == nil {
		d.fail(n, path, `"id" is missing`)
		return "", false
	}
	return d.readID(id, join(path, "id"), false)
}

// byTarget is a mute's id: its own, or what it mutes ("device:100a9af6"), so
// that the same text twice is the same mute.
func byTarget(d *decoder, n *node, path string) (string, bool) {
	return derivedID(d, n, path, []string{"device", "site", "user"}, func(target string) (string, bool) { return target, true })
}

// byTargetAndStart is a maintenance window's id: its own, or target and start.
func byTargetAndStart(d *decoder, n *node, path string) (string, bool) {
	return derivedID(d, n, path, []string{"device", "site"}, func(target string) (string, bool) {
		start := n.child("start")
		if start == nil {
			d.fail(n, path, `"start" is missing`)
			return "", false
		}
		m := &settingsv1.Maintenance{}
		before := len(d.problems)
		d.instant(&m.StartTime)(start, join(path, "start"))
		return maintenanceID(target, m), len(d.problems) == before
	})
}

func maintenanceID(target string, m *settingsv1.Maintenance) string {
	return target + "@" + instantText(m.GetStartTime())
}

// derivedID reads "id", or makes one of the single target. A derived id has a
// colon after the target's kind and may be longer than one that people choose.
func derivedID(d *decoder, n *node, path string, targets []string, derive func(target string) (string, bool)) (string, bool) {
	if !d.is(n, path, mapping) {
		return "", false
	}
	if id := n.child("id"); id != nil {
		return d.readID(id, join(path, "id"), false)
	}
	var found []string
	for _, t := range targets {
		if c := n.child(t); c != nil {
			id, ok := d.readID(c, join(path, t), false)
			if !ok {
				return "", false
			}
			found = append(found, t+":"+id)
		}
	}
	if len(found) != 1 {
		d.fail(n, path, "names %s; exactly one of %s is wanted", counted(found), wordList(targets))
		return "", false
	}
	return derive(found[0])
}

func counted(s []string) string {
	if len(s) == 0 {
		return "nothing"
	}
	return wordList(s)
}

func wordList(s []string) string {
	if len(s) < 2 {
		return fmt.Sprint(s[0])
	}
	out := s[0]
	for _, w := range s[1 : len(s)-1] {
		out += ", " + w
	}
	return out + " and " + s[len(s)-1]
}

// deleted reads "delete: true".
func (d *decoder) deleted(n *node, path string) bool {
	c := n.child("delete")
	if c == nil {
		return false
	}
	var del bool
	d.boolean(&del)(c, join(path, "delete"))
	return del
}

// version reads "version"; 0 is none.
func (d *decoder) version(n *node, path string) uint64 {
	c := n.child("version")
	if c == nil {
		return 0
	}
	v, _ := d.readCount(c, join(path, "version"), 1<<53)
	return uint64(v)
}
