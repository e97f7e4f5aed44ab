package settings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
)

// Document is settings on their way to a text, in the order of the contract.
// It is never changed.
type Document struct {
	accounts []*text
	missing  []string
}

// Export is all settings of the accounts named, or of all; users copied from
// a master account are the master's, and left out.
func (b *Book) Export(accounts ...string) *Document {
	if len(accounts) == 0 {
		accounts = b.Accounts()
	}
	d := &Document{}
	for _, id := range accounts {
		o := b.accounts[id]
		s := o[Key{id, KindAccount, id}]
		if s == nil {
			d.missing = append(d.missing, id)
			continue
		}
		m := accountText(s)
		parts := map[Kind][]any{}
		for _, s := range o.sorted() {
			if k, _ := KeyOf(s); s.GetUser().GetMasterAccountId() == "" {
				parts[k.Kind] = append(parts[k.Kind], objectText(s))
			}
		}
		for _, sec := range sections {
			if list := parts[sec.kind]; len(list) > 0 {
				m.set(sec.name, list)
			}
		}
		d.accounts = append(d.accounts, m)
	}
	return d
}

// Len is the number of accounts.
func (d *Document) Len() int { return len(d.accounts) }

// Missing are the accounts asked for that there are none of.
func (d *Document) Missing() []string { return d.missing }

// WithoutVersions is the document for another place or for keeping: applying
// it is not refused because somebody wrote in between.
func (d *Document) WithoutVersions() *Document {
	out := &Document{missing: d.missing}
	for _, a := range d.accounts {
		out.accounts = append(out.accounts, a.without("version"))
	}
	return out
}

func (m *text) without(key string) *text {
	out := &text{}
	for _, f := range *m {
		switch v := f.value.(type) {
		case *text:
			out.set(f.key, v.without(key))
		case []any:
			list := make([]any, len(v))
			for i, item := range v {
				if t, ok := item.(*text); ok {
					item = t.without(key)
				}
				list[i] = item
			}
			out.set(f.key, list)
		default:
			if f.key != key {
				out.set(f.key, v)
			}
		}
	}
	return out
}

// YAML is the document as contract.md writes it.
func (d *Document) YAML() []byte {
	var b bytes.Buffer
	if len(d.accounts) == 0 {
		return []byte("accounts: []\n")
	}
	b.WriteString("accounts:\n")
	for _, a := range d.accounts {
		for i, f := range *a {
			b.WriteString(map[bool]string{true: "  - ", false: "    "}[i == 0] + f.key + ":")
			list, isList := f.value.([]any)
			if !isList || len(list) == 0 || !isText(list[0]) {
				b.WriteByte(' ')
				flow(&b, f.value)
				b.WriteByte('\n')
				continue
			}
			b.WriteByte('\n')
			for _, item := range list {
				b.WriteString("      - ")
				flow(&b, item)
				b.WriteByte('\n')
			}
		}
	}
	return b.Bytes()
}

// JSON is the same, indented.
func (d *Document) JSON() []byte {
	var compact, b bytes.Buffer
	m := &text{}
	list := []any{}
	for _, a := range d.accounts {
		list = append(list, a)
	}
	m.set("accounts", list)
	jsonText(&compact, m)
	if err := json.Indent(&b, compact.Bytes(), "", "  "); err != nil {
		panic(fmt.Sprintf("settings: own JSON is not readable: %v: %s", err, compact.Bytes()))
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// text is a mapping that keeps its order.
type text []textField

type textField struct {
	key   string
	value any // string, word, bool, uint64, []any, *text
}

// word is a string that YAML needs no quotes for.
type word string

func isText(v any) bool { _, ok := v.(*text); return ok }

func (m *text) set(key string, v any) { *m = append(*m, textField{key, v}) }

func (m *text) setString(key, v string) {
	if v != "" {
		m.set(key, v)
	}
}

func (m *text) setDuration(key string, d *durationpb.Duration) {
	if d != nil {
		m.set(key, word(durationText(d.AsDuration())))
	}
}

// durationText is a duration as Go reads it, in the unit people wrote it in:
// 300s rather than 5m0s.
func durationText(d time.Duration) string {
	if d%time.Second != 0 {
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}

func flow(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case *text:
		b.WriteByte('{')
		for i, f := range *v {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(f.key + ": ")
			flow(b, f.value)
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			flow(b, item)
		}
		b.WriteByte(']')
	case word:
		b.WriteString(string(v))
	case string:
		b.WriteString(quote(v))
	default:
		fmt.Fprint(b, v)
	}
}

func jsonText(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case *text:
		b.WriteByte('{')
		for i, f := range *v {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(quote(f.key) + ":")
			jsonText(b, f.value)
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			jsonText(b, item)
		}
		b.WriteByte(']')
	case word:
		b.WriteString(quote(string(v)))
	case string:
		b.WriteString(quote(v))
	default:
		fmt.Fprint(b, v)
	}
}

// quote writes a JSON string, which is one of YAML too.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(fmt.Sprintf("settings: %q cannot be quoted: %v", s, err))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func accountText(s *settingsv1.Setting) *text {
	a := s.GetAccount()
	m := &text{}
	m.set("id", a.GetAccountId())
	m.set("version", s.GetVersion())
	m.setString("name", a.GetName())
	m.setString("timezone", a.GetTimezone())
	m.setString("dataCenter", a.GetDataCenter())
	m.set("active", a.GetActive())
	m.set("systemNotifications", a.GetSystemNotifications())
	if len(a.GetModes()) > 0 {
		m.set("modes", stringsText(a.GetModes()))
	}
	m.setString("activeMode", a.GetActiveMode())
	m.setString("master", a.GetMaster())
	m.setHolds(a.GetHolds())
	return m
}

func (m *text) setHolds(h *settingsv1.Holds) {
	if h == nil {
		return
	}
	t := &text{}
	t.setDuration("offline", h.GetOffline())
	t.setDuration("internetOffline", h.GetInternetOffline())
	t.setDuration("online", h.GetOnline())
	m.set("holds", t)
}

func stringsText(s []string) []any {
	out := make([]any, len(s))
	for i, v := range s {
		out[i] = v
	}
	return out
}

func objectText(s *settingsv1.Setting) *text {
	m := &text{}
	switch o := s.GetObject().(type) {
	case *settingsv1.Setting_Site:
		m.set("id", o.Site.GetSiteId())
		m.set("version", s.GetVersion())
		m.setString("name", o.Site.GetName())
		m.setHolds(o.Site.GetHolds())
	case *settingsv1.Setting_User:
		m.set("id", o.User.GetUserId())
		m.set("version", s.GetVersion())
		m.userText(o.User)
	case *settingsv1.Setting_Device:
		m.set("id", o.Device.GetDeviceId())
		m.set("version", s.GetVersion())
		m.deviceText(o.Device)
	case *settingsv1.Setting_Mute:
		x := o.Mute
		target, id := targetText(x.GetDevice(), x.GetSite(), x.GetUser())
		if x.GetMuteId() != target+":"+id {
			m.set("id", x.GetMuteId())
		}
		m.set("version", s.GetVersion())
		m.set(target, id)
		m.set("until", instantText(x.GetUntilTime()))
		m.setString("why", x.GetWhy())
	case *settingsv1.Setting_Maintenance:
		x := o.Maintenance
		target, id := targetText(x.GetDevice(), x.GetSite(), "")
		if x.GetMaintenanceId() != maintenanceID(target+":"+id, x) {
			m.set("id", x.GetMaintenanceId())
		}
		m.set("version", s.GetVersion())
		m.set(target, id)
		m.set("start", instantText(x.GetStartTime()))
		m.set("end", instantText(x.GetEndTime()))
	}
	return m
}

func targetText(device, site, user string) (kind, id string) {
	switch {
	case device != "":
		return "device", device
	case site != "":
		return "site", site
	default:
		return "user", user
	}
}

func (m *text) userText(u *settingsv1.User) {
	m.setString("name", u.GetName())
	m.set("email", u.GetEmail())
	m.set("enabled", u.GetEnabled())
	m.set("admin", u.GetAdmin())
	levels := []any{}
	for _, l := range u.GetLevels() {
		levels = append(levels, word(l.String()))
	}
	m.set("levels", levels)
	m.setString("timezone", u.GetTimezone())
	windows := []any{}
	for _, w := range u.GetWindows() {
		days := []any{}
		for _, d := range w.GetDays() {
			days = append(days, word(d.String()))
		}
		t := &text{}
		t.set("days", days)
		t.set("start", clockText(w.GetStartMinutes()))
		t.set("end", clockText(w.GetEndMinutes()))
		windows = append(windows, t)
	}
	m.set("windows", windows)
	if len(u.GetDigests()) > 0 {
		t := &text{}
		for _, d := range u.GetDigests() {
			t.set(d.GetLevel().String(), word(rhythmNames[d.GetRhythm()]))
		}
		m.set("digest", t)
	}
	if len(u.GetUnsubscribed()) > 0 {
		m.set("unsubscribed", stringsText(u.GetUnsubscribed()))
	}
}

func clockText(minutes uint32) string { return fmt.Sprintf("%02d:%02d", minutes/60, minutes%60) }

func (m *text) deviceText(d *settingsv1.Device) {
	m.setString("name", d.GetName())
	m.set("kind", word(d.GetKind().String()))
	m.setString("bridge", d.GetBridge())
	m.setString("site", d.GetSite())
	m.setHolds(d.GetHolds())
	m.setDuration("silentAfter", d.GetSilentAfter())
	if len(d.GetRegions()) == 0 {
		return
	}
	regions := []any{}
	for _, r := range d.GetRegions() {
		t := &text{}
		t.set("id", r.GetRegionId())
		t.setString("name", r.GetName())
		t.set("level", word(r.GetLevel().String()))
		t.set("enabled", r.GetEnabled())
		if len(r.GetModes()) > 0 {
			t.set("modes", stringsText(r.GetModes()))
		}
		if len(r.GetRecipients()) > 0 {
			t.set("recipients", stringsText(r.GetRecipients()))
		}
		t.setDuration("rearm", r.GetRearm())
		if r.GetMaxPerHour() > 0 {
			t.set("maxPerHour", uint64(r.GetMaxPerHour()))
		}
		regions = append(regions, t)
	}
	m.set("regions", regions)
}
