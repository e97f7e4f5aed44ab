package settings

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
)

// contractText is contract.md's example.
const contractText = `accounts:
  - id: "00011557"
    name: Acme
    timezone: America/Chicago
    dataCenter: c001
    active: true
    systemNotifications: true
    activeMode: default            # modes: [default, weekend]
    master: "00010000"             # optional; its users may get status of this account
    holds: {offline: 300s, internetOffline: 300s, online: 95s}
    sites: [{id: main, name: Main street, holds: {}}]
    users:
      - {id: ca0ffa8c, email: ann@acme.test, enabled: true, admin: true, levels: [LOW, HIGH, SYSTEM], timezone: America/Chicago,
         windows: [{days: [MON, TUE, WED, THU, FRI, SAT, SUN], start: "00:00", end: "24:00"}], digest: {LOW: daily}, unsubscribed: []}
    devices:
      - {id: "100a9af6", name: Front door, kind: CAMERA, bridge: "100b0001", site: main, holds: {}, silentAfter: 0s,
         regions: [{id: door, name: Door, level: HIGH, enabled: true, modes: [], recipients: [], rearm: 60s, maxPerHour: 10}]}
    mutes: [{device: "100a9af6", until: "2026-03-02T08:00:00Z", why: repair}]         # device, site or user
    maintenance: [{site: main, start: "2026-03-02T08:00:00Z", end: "2026-03-02T09:00:00Z"}]
`

// apply writes texts to a book, one after the other.
func apply(t testing.TB, b *Book, texts ...string) *Change {
	t.Helper()
	var c *Change
	for _, text := range texts {
		var err error
		if c, err = tryApply(b, text, Options{}); err != nil {
			t.Fatalf("apply: %v\n%s", err, text)
		}
		b.Commit(c)
	}
	return c
}

func tryApply(b *Book, text string, o Options) (*Change, error) {
	w, err := Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	return b.Apply(w, o)
}

// all is everything in a book, for comparison.
func all(b *Book) map[string][]*settingsv1.Setting {
	out := map[string][]*settingsv1.Setting{}
	for _, a := range b.Accounts() {
		out[a] = b.Settings(a)
	}
	return out
}

// The contract's own example is read, field by field, as it says.
func TestContractExample(t *testing.T) {
	b := NewBook()
	c := apply(t, b, contractText)
	u := b.Get(Key{"00011557", KindUser, "ca0ffa8c"}).GetUser()
	want := &settingsv1.User{
		UserId: "ca0ffa8c", Email: "ann@acme.test", Enabled: true, Admin: true, Timezone: "America/Chicago",
		Levels:  []settingsv1.Level_Value{settingsv1.Level_LOW, settingsv1.Level_HIGH, settingsv1.Level_SYSTEM},
		Windows: Always(), Digests: []*settingsv1.Digest{{Level: settingsv1.Level_LOW, Rhythm: settingsv1.Digest_DAILY}},
	}
	if d := cmp.Diff(want, u, protocmp.Transform()); d != "" {
		t.Error("user (-want +got):\n" + d)
	}
	r := b.Get(Key{"00011557", KindDevice, "100a9af6"}).GetDevice().GetRegions()[0]
	if r.GetLevel() != settingsv1.Level_HIGH || !r.GetEnabled() || r.GetRearm().AsDuration() != time.Minute || r.GetMaxPerHour() != 10 {
		t.Errorf("region = %v", r)
	}
	if got := len(c.Settings); got != 6 {
		t.Errorf("%d settings, want 6", got)
	}
	if len(c.Devices) != 1 || c.Devices[0].GetHolds().GetOnline().AsDuration() != 95*time.Second {
		t.Errorf("device settings = %v", c.Devices)
	}
	var warned []string
	for _, w := range c.Warnings {
		warned = append(warned, w.Field)
	}
	if d := cmp.Diff([]string{"accounts[0].master", "accounts[0].devices[0].bridge"}, warned); d != "" {
		t.Error("warnings (-want +got):\n" + d)
	}
}

// Every kind of mistake is refused whole, and the message names line, column,
// field and the way out.
func TestMistakes(t *testing.T) {
	const account = "accounts:\n  - id: \"1\"\n"
	for name, c := range map[string]struct{ text, want string }{
		"unquoted id, exponent":   {"accounts:\n  - id: 100e0001\n", `line 2, column 9: accounts[0].id: 100e0001 is a number to YAML; put the id in quotes: "100e0001"`},
		"unquoted id, octal":      {"accounts:\n  - id: 00011557\n", `line 2, column 9: accounts[0].id: 00011557 is a number to YAML; put the id in quotes: "00011557"`},
		"unquoted device id":      {account + "    devices:\n      - {id: 100e0001}\n", `line 4, column 14: accounts[0].devices[0].id: 100e0001 is a number`},
		"unquoted bridge":         {account + "    devices: [{id: a, bridge: 1e5}]\n", `accounts[0].devices[0].bridge: 1e5 is a number`},
		"id true":                 {"accounts:\n  - id: true\n", `line 2, column 9: accounts[0].id: true is true or false to YAML; put a text in quotes: "true"`},
		"bad id":                  {"accounts:\n  - id: \"a b\"\n", `accounts[0].id: "a b" is not an id: 1 to 64 of A-Z a-z 0-9 . _ : -`},
		"no id":                   {"accounts:\n  - name: x\n", `line 2, column 5: accounts[0]: "id" is missing`},
		"typo in a key":           {account + "    timezon: UTC\n", `line 3, column 5: accounts[0].timezon: unknown field "timezon"; did you mean "timezone"?`},
		"typo, other case":        {account + "    data_center: c001\n", `unknown field "data_center"; did you mean "dataCenter"?`},
		"typo at the top":         {"account:\n  - id: a\n", `line 1, column 1: account: unknown field "account"; did you mean "accounts"?`},
		"typo in a hold":          {account + "    holds: {ofline: 3s}\n", `line 3, column 13: accounts[0].holds.ofline: unknown field "ofline"; did you mean "offline"?`},
		"bad zone":                {account + "    timezone: Mars/Base\n", `line 3, column 15: accounts[0].timezone: unknown time zone "Mars/Base"; write an IANA name`},
		"zone in small letters":   {account + "    timezone: america/new york\n", `did you mean "America/New_York"?`},
		"zone Local":              {account + "    timezone: Local\n", `unknown time zone "Local"`},
		"bad time":                {account + "    users: [{id: u, email: a@b.c, windows: [{days: [MON], start: \"25:00\", end: \"24:00\"}]}]\n", `accounts[0].users[0].windows[0].start: "25:00" is not a time of day; write "00:00" to "24:00"`},
		"window without days":     {account + "    users: [{id: u, email: a@b.c, windows: [{start: \"08:00\", end: \"24:00\"}]}]\n", `accounts[0].users[0].windows[0]: "days" is missing`},
		"window starting at 24":   {account + "    users: [{id: u, email: a@b.c, windows: [{days: [MON], start: \"24:00\", end: \"24:00\"}]}]\n", `"24:00" ends a day and starts none`},
		"windows without value":   {account + "    users:\n      - id: u\n        email: a@b.c\n        windows:\n", `line 6, column 18: accounts[0].users[0].windows: has no value; write [] for never`},
		"unknown day":             {account + "    users: [{id: u, email: a@b.c, windows: [{days: [MONDAY], start: \"08:00\", end: \"24:00\"}]}]\n", `windows[0].days[0]: unknown day "MONDAY"; did you mean "MON"?`},
		"unknown level":           {account + "    users: [{id: u, email: a@b.c, levels: [HIHG]}]\n", `accounts[0].users[0].levels[0]: unknown level "HIHG"; did you mean "HIGH"?`},
		"region level SYSTEM":     {account + "    devices: [{id: d, regions: [{id: r, level: SYSTEM}]}]\n", `accounts[0].devices[0].regions[0].level: unknown level of a region "SYSTEM"; known are LOW, HIGH`},
		"bad address":             {account + "    users: [{id: u, email: ann.acme.test}]\n", `accounts[0].users[0].email: "ann.acme.test" is no mail address: there is no @ in it`},
		"address with name":       {account + "    users: [{id: u, email: \"Ann <a@b.c>\"}]\n", `write the bare address here`},
		"address with line break": {account + "    users: [{id: u, email: \"a@b.c\\nBcc: x@y.z\"}]\n", `is no mail address`},
		"no address":              {account + "    users: [{id: u}]\n", `accounts[0].users[0].email: is missing; a new user needs an address`},
		"bad duration":            {account + "    holds: {offline: soon}\n", `accounts[0].holds.offline: "soon" is not a duration; write it like 300s`},
		"duration without unit":   {account + "    holds: {offline: 300}\n", `300 has no unit; write 300s or 300m`},
		"negative hold":           {account + "    holds: {offline: -1s}\n", `-1s is negative; 0s is the least`},
		"endless hold":            {account + "    holds: {offline: 200h}\n", `200h is more than 7 days`},
		"negative limit":          {account + "    devices: [{id: d, regions: [{id: r, maxPerHour: -1}]}]\n", `maxPerHour: -1 is negative; 0 is the least`},
		"quoted number":           {account + "    devices: [{id: d, regions: [{id: r, maxPerHour: \"10\"}]}]\n", `"10" is not a whole number (without quotes)`},
		"yes":                     {account + "    active: yes\n", `"yes" is neither true nor false`},
		"duplicate account":       {"accounts:\n  - id: a\n  - id: a\n", `line 3, column 5: accounts[1]: account a is named twice, first on line 2`},
		"duplicate device":        {account + "    devices: [{id: d}, {id: d}]\n", `device d is named twice`},
		"duplicate region":        {account + "    devices: [{id: d, regions: [{id: r}, {id: r}]}]\n", `region "r" is named twice`},
		"duplicate key":           {"accounts:\n  - id: a\n    name: x\n    name: y\n", `line 4, column 5: mapping key "name" already defined at line 3; keep one of the two`},
		"unknown site":            {account + "    sites: [{id: main}]\n    devices: [{id: d, site: mian}]\n", `line 4, column 29: accounts[0].devices[0].site: the account has no site "mian"; did you mean "main"?`},
		"bridge is a camera":      {account + "    devices: [{id: d, bridge: e}, {id: e}]\n", `accounts[0].devices[0].bridge: device e is a camera; give it kind: BRIDGE or name another`},
		"own bridge":              {account + "    devices: [{id: d, kind: BRIDGE, bridge: d}]\n", `cannot be its own bridge`},
		"unknown recipient":       {account + "    users: [{id: ann, email: a@b.c}]\n    devices: [{id: d, regions: [{id: r, recipients: [anna]}]}]\n", `accounts[0].devices[0].regions[0].recipients: the account has no user "anna"; did you mean "ann"?`},
		"unknown mode":            {account + "    modes: [default, weekend]\n    activeMode: weekends\n", `accounts[0].activeMode: unknown mode "weekends"; did you mean "weekend"?`},
		"unknown region mode":     {account + "    modes: [default]\n    devices: [{id: d, regions: [{id: r, modes: [night]}]}]\n", `regions[0].modes: unknown mode "night"; known are default`},
		"own master":              {account + "    master: \"1\"\n", `cannot be its own master`},
		"mute of nothing":         {account + "    mutes: [{until: \"2026-03-02T08:00:00Z\"}]\n", `names nothing; exactly one of device, site and user is wanted`},
		"mute of two":             {account + "    mutes: [{device: d, site: s, until: \"2026-03-02T08:00:00Z\"}]\n", `names device:d and site:s; exactly one`},
		"mute without end":        {account + "    mutes: [{device: d}]\n", `accounts[0].mutes[0].until: says when the mute ends, and is missing`},
		"mute of unknown user":    {account + "    mutes: [{user: bob, until: \"2026-03-02T08:00:00Z\"}]\n", `the account has no user "bob"`},
		"bad instant":             {account + "    mutes: [{device: d, until: tomorrow}]\n", `"tomorrow" is not an instant; write it like 2026-03-02T08:00:00Z`},
		"backward maintenance":    {account + "    maintenance: [{device: d, start: \"2026-03-02T08:00:00Z\", end: \"2026-03-02T07:00:00Z\"}]\n", `end: 2026-03-02T07:00:00Z is not after the start`},
		"unknown type":            {account + "    users: [{id: u, email: a@b.c, unsubscribed: [OFLINE]}]\n", `unknown notification type "OFLINE"; did you mean "OFFLINE"?, or device:<id>`},
		"unknown rhythm":          {account + "    users: [{id: u, email: a@b.c, digest: {LOW: dayly}}]\n", `digest.LOW: unknown rhythm "dayly"; did you mean "daily"?`},
		"line break in a name":    {account + "    name: \"a\\nb\"\n", `has a line break`},
		"long name":               {account + "    name: " + strings.Repeat("x", 201) + "\n", `is 201 characters long, more than 200`},
		"a list for a text":       {account + "    name: [a]\n", `accounts[0].name: a value is wanted here, not a list`},
		"a text for a list":       {account + "    users: ann\n", `accounts[0].users: a list is wanted here, not "ann"`},
		"null":                    {account + "    name: ~\n", `accounts[0].name: has no value`},
		"empty":                   {"", `the text is empty; it begins with "accounts:"`},
		"only a comment":          {"# nothing\n", `the text is empty`},
		"two documents":           {"accounts: []\n---\naccounts: []\n", `line 3, column 9: a second document`},
		"anchor":                  {"accounts: &a []\n", `anchors and aliases`},
		"alias":                   {"accounts: []\nx: *a\n", `anchors and aliases`},
		"merge key":               {account + "    <<: {name: x}\n", `merge keys (<<)`},
		"tag":                     {"accounts:\n  - id: !!str 1\n", `tags (!) are not read here`},
		"bad YAML":                {"accounts: [\n", `line 1, column`},
		"tab":                     {"accounts:\n\t- id: a\n", `line 2`},
		"not UTF-8":               {"accounts:\n  - id: a\n    name: \xff\n", `line 3, column 11: byte 0xff is not UTF-8`},
		"deep brackets":           {strings.Repeat("[", 100_000), `nested more than 24 deep`},
		"deep dashes":             {strings.Repeat("- ", 100_000), `nested more than 24 deep`},
		"user of the master": {account + "    users: [{id: ann, email: a@b.c}]\n  - id: \"2\"\n    master: \"1\"\n    users: [{id: ann, email: a@b.c}]\n",
			`accounts[1].users[0].id: user ann is a user of the master account 1 already`},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBook()
			_, err := tryApply(b, c.text, Options{})
			var ps Problems
			if !errors.As(err, &ps) {
				t.Fatalf("err = %v, want Problems", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error  %v\nlacks  %s", err, c.want)
			}
			if len(b.Accounts()) != 0 {
				t.Error("the book was changed")
			}
		})
	}
}

// All that is wrong is told at once, not the first only.
func TestAllMistakesAtOnce(t *testing.T) {
	_, err := Parse([]byte("accounts:\n  - id: 1\n  - id: b\n    naem: x\n    active: maybe\n"))
	var ps Problems
	if !errors.As(err, &ps) || len(ps) != 3 {
		t.Fatalf("err = %v, want three problems", err)
	}
}

// A write that leaves a field out keeps it, in objects and in regions.
func TestPartialWriteKeepsTheRest(t *testing.T) {
	b := NewBook()
	apply(t, b, contractText, `{"accounts":[{"id":"00011557","name":"Acme Ltd",
		"users":[{"id":"ca0ffa8c","enabled":false,"digest":{"HIGH":"hourly"}}],
		"devices":[{"id":"100a9af6","holds":{"online":"10s"},"regions":[{"id":"door","rearm":"5m"},{"id":"yard"}]}]}]}`)
	u := b.Get(Key{"00011557", KindUser, "ca0ffa8c"}).GetUser()
	if u.GetEnabled() || u.GetEmail() != "ann@acme.test" || len(u.GetLevels()) != 3 || len(u.GetWindows()) != 1 || len(u.GetDigests()) != 2 {
		t.Errorf("user = %v", u)
	}
	a := b.Get(Key{"00011557", KindAccount, "00011557"})
	if a.GetAccount().GetName() != "Acme Ltd" || a.GetAccount().GetTimezone() != "America/Chicago" || a.GetVersion() != 2 {
		t.Errorf("account = %v", a)
	}
	v := b.Get(Key{"00011557", KindDevice, "100a9af6"}).GetDevice()
	if r := v.GetRegions(); len(r) != 2 || r[0].GetName() != "Door" || r[0].GetRearm().AsDuration() != 5*time.Minute || r[1].GetLevel() != settingsv1.Level_LOW || !r[1].GetEnabled() {
		t.Errorf("regions = %v", r)
	}
	if v.GetName() != "Front door" || v.GetHolds().GetOnline().AsDuration() != 10*time.Second {
		t.Errorf("device = %v", v)
	}
	if got := b.Get(Key{"00011557", KindSite, "main"}).GetVersion(); got != 1 {
		t.Errorf("site has version %d though nothing changed it", got)
	}
}

// windows left out: a new user gets always, a user that exists keeps them;
// an empty list is never (contract: Settings).
func TestWindows(t *testing.T) {
	b := NewBook()
	apply(t, b, `{accounts: [{id: a, users: [{id: ann, email: a@b.c}, {id: bob, email: a@b.c, windows: []}]}]}`)
	for id, want := range map[string]int{"ann": 1, "bob": 0} {
		if got := b.Get(Key{"a", KindUser, id}).GetUser().GetWindows(); len(got) != want {
			t.Errorf("%s has windows %v, want %d", id, got, want)
		}
	}
	apply(t, b, `{accounts: [{id: a, users: [{id: ann, windows: []}, {id: bob, name: Bob}]}]}`)
	for _, id := range []string{"ann", "bob"} {
		if got := b.Get(Key{"a", KindUser, id}).GetUser().GetWindows(); len(got) != 0 {
			t.Errorf("%s has windows %v, want none", id, got)
		}
	}
}

// A write that carries an older version of any object is refused whole, one
// that carries the stored or none is taken, and versions count writes.
func TestVersions(t *testing.T) {
	b := NewBook()
	apply(t, b, `{accounts: [{id: a, users: [{id: ann, email: a@b.c}]}]}`, `{accounts: [{id: a, users: [{id: ann, version: 1, name: Ann}]}]}`)
	before := all(b)
	_, err := tryApply(b, `{accounts: [{id: a, name: A, users: [{id: ann, version: 1, name: Anna}, {id: bob, email: a@b.c}]}]}`, Options{})
	var c Conflict
	if !errors.As(err, &c) || len(c) != 1 || c[0].Field != "accounts[0].users[0].version" {
		t.Fatalf("err = %v, want a conflict about ann", err)
	}
	if !strings.Contains(err.Error(), "user ann has version 2 by now, this write is based on 1") {
		t.Errorf("err = %v", err)
	}
	if d := cmp.Diff(before, all(b), protocmp.Transform()); d != "" {
		t.Error("the book was changed:\n" + d)
	}
	apply(t, b, `{accounts: [{id: a, users: [{id: ann, version: 2, name: Anna}]}]}`)
	if got := b.Get(Key{"a", KindUser, "ann"}).GetVersion(); got != 3 {
		t.Errorf("version = %d, want 3", got)
	}
}

// delete: true and Prune take objects away; what still refers to them stops
// it; a device's resolved settings go with it.
func TestDelete(t *testing.T) {
	const start = `{accounts: [{id: a, sites: [{id: main}, {id: barn}], users: [{id: ann, email: a@b.c}, {id: bob, email: a@b.c}],
		devices: [{id: d1, site: main, regions: [{id: r, recipients: [ann]}, {id: s}]}, {id: d2}]}]}`
	for name, c := range map[string]struct {
		text    string
		prune   bool
		removed string
		err     string
	}{
		"site in use":   {text: `{accounts: [{id: a, sites: [{id: main, delete: true}]}]}`, err: "accounts[0].sites[0].delete: site main is still used by device d1"},
		"user in use":   {text: `{accounts: [{id: a, users: [{id: ann, delete: true}]}]}`, err: `(region r of device d1): the account has no user "ann"`},
		"free site":     {text: `{accounts: [{id: a, sites: [{id: barn, delete: true}]}]}`, removed: "[a/site/barn] []"},
		"site and user": {text: `{accounts: [{id: a, sites: [{id: main, delete: true}], devices: [{id: d1, site: ""}]}]}`, removed: "[a/site/main] []"},
		"device":        {text: `{accounts: [{id: a, devices: [{id: d1, delete: true}]}]}`, removed: "[a/device/d1] [a/d1]"},
		"region":        {text: `{accounts: [{id: a, devices: [{id: d1, regions: [{id: s, delete: true}]}]}]}`, removed: "[] []"},
		"account":       {text: `{accounts: [{id: a, delete: true}]}`, removed: "[a/account/a a/site/barn a/site/main a/user/ann a/user/bob a/device/d1 a/device/d2] [a/d1 a/d2]"},
		"unknown":       {text: `{accounts: [{id: a, devices: [{id: d9, delete: true}]}]}`, removed: "[] []"},
		"prune":         {text: `{accounts: [{id: a, users: [{id: ann, email: a@b.c}], sites: [{id: main}], devices: [{id: d1, regions: [{id: r, recipients: [ann]}]}]}]}`, prune: true, removed: "[a/site/barn a/user/bob a/device/d2] [a/d2]"},
		"prune too far": {text: `{accounts: [{id: a, devices: [{id: d1, site: main}]}]}`, prune: true, err: `the account has no site "main"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBook()
			apply(t, b, start)
			got, err := tryApply(b, c.text, Options{Prune: c.prune})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("err = %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := fmt.Sprint(got.Removed, got.RemovedDevices); s != c.removed {
				t.Errorf("removed %s, want %s", s, c.removed)
			}
		})
	}
}

// A hold comes from the device, else its site, else the account (rule H1);
// "inherit" gives it back; disabled regions, kind and activity are resolved.
func TestResolve(t *testing.T) {
	b := NewBook()
	apply(t, b, `{accounts: [{id: a, holds: {offline: 1s, online: 2s}, sites: [{id: s, holds: {offline: 3s}}],
		devices: [{id: d1, site: s, holds: {internetOffline: 4s}, silentAfter: 35s, regions: [{id: z, enabled: false}, {id: b, enabled: false}, {id: c}]}, {id: d2, kind: BRIDGE}]},
		{id: b, devices: [{id: d3}]}]}`)
	hold := func(d *settingsv1.DeviceSettings) string {
		h := d.GetHolds()
		if h == nil {
			return "service's"
		}
		s := ""
		for _, v := range []interface{ AsDuration() time.Duration }{h.Offline, h.InternetOffline, h.Online} {
			s += v.AsDuration().String() + " "
		}
		return s
	}
	d := b.Devices("a")
	if got := hold(d[0]); got != "3s 4s 2s " {
		t.Errorf("d1 holds %s", got)
	}
	if got := hold(d[1]); got != "1s 0s 2s " || d[1].GetHolds().GetInternetOffline() != nil || d[1].GetKind() != settingsv1.Device_BRIDGE || !d[1].GetActive() {
		t.Errorf("d2 = %v", d[1])
	}
	if got := d[0].GetDisabledRegions(); !slices.Equal(got, []string{"b", "z"}) || d[0].GetSilentAfter().AsDuration() != 35*time.Second {
		t.Errorf("d1 = %v", d[0])
	}
	if got := hold(b.Devices("b")[0]); got != "service's" {
		t.Errorf("d3 holds %s", got)
	}
	// A change of the site reaches its devices only, a change of the account the rest.
	c := apply(t, b, `{accounts: [{id: a, sites: [{id: s, holds: {offline: 9s}}]}]}`)
	if len(c.Devices) != 1 || c.Devices[0].GetDeviceId() != "d1" {
		t.Errorf("devices = %v", c.Devices)
	}
	c = apply(t, b, `{accounts: [{id: a, active: false}]}`)
	if len(c.Devices) != 2 || c.Devices[0].GetActive() {
		t.Errorf("devices = %v", c.Devices)
	}
	apply(t, b, `{accounts: [{id: a, devices: [{id: d1, holds: {internetOffline: inherit}}]}]}`)
	if got := b.Devices("a")[0].GetHolds(); got.GetInternetOffline() != nil {
		t.Errorf("d1 = %v", got)
	}
}

// Users of a master account are copied into its sub-accounts with their zone,
// follow every change there, and leave with the link (rule G2).
func TestMasterUsersAreCopied(t *testing.T) {
	b := NewBook()
	// The sub-account first: the link may come before the master.
	apply(t, b, `{accounts: [{id: sub, master: top, users: [{id: own, email: o@b.c}]}]}`)
	apply(t, b, `{accounts: [{id: top, timezone: Europe/Berlin, users: [{id: ann, email: a@b.c, admin: true, levels: [SYSTEM]}, {id: bob, email: b@b.c, timezone: Asia/Tokyo}]}]}`)
	copied := func() string {
		s := ""
		for _, o := range b.Settings("sub") {
			if u := o.GetUser(); u.GetMasterAccountId() != "" {
				s += u.GetUserId() + " " + u.GetEmail() + " " + u.GetTimezone() + " " + u.GetMasterAccountId() + "; "
			}
		}
		return s
	}
	if got := copied(); got != "ann a@b.c Europe/Berlin top; bob b@b.c Asia/Tokyo top; " {
		t.Error(got)
	}
	c := apply(t, b, `{accounts: [{id: top, users: [{id: bob, delete: true}, {id: ann, email: x@b.c}]}]}`)
	if got := copied(); got != "ann x@b.c Europe/Berlin top; " {
		t.Error(got)
	}
	if len(c.Settings) != 2 || len(c.Removed) != 2 {
		t.Errorf("change = %v %v", c.Settings, c.Removed)
	}
	if text := string(b.Export("sub").YAML()); strings.Contains(text, "ann") || !strings.Contains(text, "own") {
		t.Errorf("the export of the sub-account names the master's users:\n%s", text)
	}
	for _, text := range []string{
		`{accounts: [{id: sub, users: [{id: ann, email: own@b.c}]}]}`,
		`{accounts: [{id: top, users: [{id: own, email: own@b.c}]}]}`,
		`{accounts: [{id: sub, users: [{id: ann, delete: true}]}]}`,
		`{accounts: [{id: sub, devices: [{id: d, regions: [{id: r, recipients: [ann]}]}]}]}`,
	} {
		if _, err := tryApply(b, text, Options{}); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
	if _, err := tryApply(b, string(b.Export("sub").YAML()), Options{Prune: true}); err != nil {
		t.Errorf("prune: %v", err)
	}
	apply(t, b, `{accounts: [{id: sub, master: ""}]}`)
	if got := copied(); got != "" {
		t.Error(got)
	}
}

// A write of what is there changes nothing and gives no record.
func TestSameWriteChangesNothing(t *testing.T) {
	b := NewBook()
	apply(t, b, contractText)
	for _, text := range []string{contractText, string(b.Export().YAML()), string(b.Export().JSON())} {
		c, err := tryApply(b, text, Options{Prune: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Settings)+len(c.Removed)+len(c.Devices)+len(c.RemovedDevices) != 0 {
			t.Errorf("change = %v", c.Lines)
		}
	}
}

// What is stored is read back as it was, and bytes that are wrong change
// nothing.
func TestLoad(t *testing.T) {
	b, again := NewBook(), NewBook()
	apply(t, b, contractText)
	for _, a := range b.Accounts() {
		for _, s := range b.Settings(a) {
			k, _ := KeyOf(s)
			value, err := s.MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			if err := again.Load([]byte(k.String()), value); err != nil {
				t.Fatal(err)
			}
		}
	}
	if d := cmp.Diff(all(b), all(again), protocmp.Transform()); d != "" {
		t.Error(d)
	}
	value, _ := b.Get(Key{"00011557", KindSite, "main"}).MarshalVT()
	for key, value := range map[string][]byte{"": {}, "a/b": {}, "a/thing/c": {}, "a/user/b": {0xff, 0xff}, "other/site/main": value, "00011557/site/main": {}} {
		if err := again.Load([]byte(key), value); err == nil {
			t.Errorf("%q: taken", key)
		}
	}
	if d := cmp.Diff(all(b), all(again), protocmp.Transform()); d != "" {
		t.Error(d)
	}
	if err := again.Load([]byte("00011557/site/main"), nil); err != nil || again.Get(Key{"00011557", KindSite, "main"}) != nil {
		t.Errorf("tombstone: %v", err)
	}
}

// randomBook is a book of everything, with hostile names.
func randomBook(r *rand.Rand) *Book {
	names := []string{"", "Front door", `"quoted" \back`, "{a: b}, [c]", "# no comment", "'", "ünï \U0001F6AA", "on", "100e0001", "- x", "a: b", "<b>", "\u2028\ufeff", "~", " lead ", "%x", "@y", "|", ">"}
	pick := func(s []string) string { return s[r.IntN(len(s))] }
	yes := func() bool { return r.IntN(2) == 0 }
	var b strings.Builder
	holds := func() {
		if yes() {
			fmt.Fprintf(&b, ", holds: {offline: %ds, online: %dms}", r.IntN(1000), r.IntN(100000))
		}
	}
	b.WriteString("accounts:\n")
	for a := range 1 + r.IntN(3) {
		fmt.Fprintf(&b, "  - {id: \"%d\", name: %s, timezone: %s, active: %t, systemNotifications: %t", a, quote(pick(names)), pick([]string{`""`, "Europe/Berlin", "UTC"}), yes(), yes())
		holds()
		if a > 0 && yes() {
			b.WriteString(`, master: "0"`)
		}
		b.WriteString(", modes: [day, \"night: x\"], activeMode: day, sites: [")
		for i := range 3 {
			fmt.Fprintf(&b, "{id: s%d, name: %s", i, quote(pick(names)))
			holds()
			b.WriteString("}, ")
		}
		b.WriteString("], users: [")
		for i := range 3 {
			fmt.Fprintf(&b, "{id: \"u%d.%d\", name: %s, email: u%d@a.test, enabled: %t, admin: %t, levels: %s", a, i, quote(pick(names)), i, yes(), yes(), pick([]string{"[]", "[HIGH]", "[SYSTEM, LOW]"}))
			fmt.Fprint(&b, pick([]string{"", ", windows: []", ", windows: [{days: [SUN, MON], start: \"22:30\", end: \"06:00\"}, {days: [TUE], start: \"00:00\", end: \"00:00\"}]"}))
			fmt.Fprint(&b, pick([]string{"", ", digest: {HIGH: hourly, LOW: daily}", ", unsubscribed: [ALERT, \"device:d:1\"]"}), "}, ")
		}
		b.WriteString("], devices: [{id: b0, kind: BRIDGE}, ")
		for i := range r.IntN(5) {
			fmt.Fprintf(&b, "{id: \"100e000%d\", name: %s, site: s%d, bridge: b0, silentAfter: %ds", i, quote(pick(names)), r.IntN(3), r.IntN(3))
			holds()
			fmt.Fprint(&b, ", regions: [")
			for j := range r.IntN(3) {
				fmt.Fprintf(&b, "{id: r%d, name: %s, level: %s, enabled: %t, rearm: %ds, maxPerHour: %d, modes: %s, recipients: [\"u%d.1\"]}, ", j, quote(pick(names)), pick([]string{"LOW", "HIGH"}), yes(), r.IntN(90), r.IntN(3), pick([]string{"[]", "[day]"}), a)
			}
			b.WriteString("]}, ")
		}
		b.WriteString("], mutes: [{site: s1, until: \"2026-03-02T08:00:00.250Z\", why: " + quote(pick(names)) + "}, {id: m2, user: \"u" + fmt.Sprint(a) + ".2\", until: \"2030-01-01T01:00:00+01:00\"}]")
		b.WriteString(", maintenance: [{device: b0, start: \"2026-03-02T08:00:00Z\", end: \"2026-03-02T08:00:01Z\"}]}\n")
	}
	book := NewBook()
	c, err := tryApply(book, b.String(), Options{})
	if err != nil {
		panic(err.Error() + "\n" + b.String())
	}
	book.Commit(c)
	return book
}

// apply(export(x)) is x: on an empty book, on x itself, and, pruning, on
// another book, whose versions go on; as YAML and as JSON.
func TestExportRoundTrip(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		x := randomBook(r)
		want := all(x)
		for _, text := range [][]byte{x.Export().YAML(), x.Export().JSON()} {
			for name, b := range map[string]*Book{"empty": NewBook(), "itself": x, "other": randomBook(r)} {
				w, err := Parse(text)
				if err != nil {
					t.Fatalf("%s: %v\n%s", name, err, text)
				}
				opts := cmp.Options{protocmp.Transform()}
				if name == "other" {
					w = withoutVersions(w)
					opts = append(opts, protocmp.IgnoreFields(&settingsv1.Setting{}, "version"))
				}
				c, err := b.Apply(w, Options{Prune: name == "other"})
				if err != nil {
					t.Fatalf("%s: %v\n%s", name, err, text)
				}
				if name == "itself" && len(c.Lines) > 0 {
					t.Fatalf("%v\n%s", c.Lines, text)
				}
				b.Commit(c)
				got := all(b)
				maps.DeleteFunc(got, func(account string, _ []*settingsv1.Setting) bool { return want[account] == nil })
				if d := cmp.Diff(want, got, opts); d != "" {
					t.Fatalf("%s (-want +got):\n%s\n%s", name, d, text)
				}
			}
		}
	}
}

func withoutVersions(w *Write) *Write {
	var strip func(n *node) *node
	strip = func(n *node) *node {
		c := *n
		c.entries, c.items = nil, nil
		for _, e := range n.entries {
			if e.key != "version" {
				e.value = strip(e.value)
				c.entries = append(c.entries, e)
			}
		}
		for _, i := range n.items {
			c.items = append(c.items, strip(i))
		}
		return &c
	}
	out := &Write{}
	for _, a := range w.accounts {
		out.accounts = append(out.accounts, strip(a))
	}
	return out
}

// The same write on the same book gives the same change, line for line.
func TestChangeIsDeterministic(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := randomBook(r).Export().YAML()
	var first string
	for range 20 {
		c, err := tryApply(NewBook(), string(text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(c.Lines, c.Warnings)
		for _, s := range c.Settings {
			v, _ := s.MarshalVT()
			got += string(v)
		}
		if first == "" {
			first = got
		} else if got != first {
			t.Fatal("two changes of one write differ")
		}
	}
}

// Whatever the bytes: no panic; what is taken can be exported, and the export
// is taken and changes nothing.
func FuzzApply(f *testing.F) {
	f.Add([]byte(contractText))
	f.Add([]byte(`{"accounts":[{"id":"a","users":[{"id":"u","email":"a@b.c","windows":[]}],"mutes":[{"user":"u","until":"2026-03-02T08:00:00Z"}]}]}`))
	f.Add([]byte("accounts:\n  - id: a\n    sites: [{id: s, delete: true}]\n    maintenance: [{id: m, site: s, start: 2026-01-01T00:00:00Z, end: 2027-01-01T00:00:00Z}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		w, err := Parse(text)
		if err != nil {
			var ps Problems
			if !errors.As(err, &ps) || len(ps) == 0 {
				t.Fatalf("err = %v", err)
			}
			return
		}
		b := NewBook()
		c, err := b.Apply(w, Options{})
		if err != nil {
			return
		}
		b.Commit(c)
		for _, out := range [][]byte{b.Export().YAML(), b.Export().JSON()} {
			again, err := Parse(out)
			if err != nil {
				if b.Export().Len() == 0 {
					continue
				}
				t.Fatalf("export: %v\n%s", err, out)
			}
			c, err := b.Apply(again, Options{Prune: true})
			if err != nil {
				t.Fatalf("export: %v\n%s", err, out)
			}
			if len(c.Lines) > 0 {
				t.Fatalf("export changes %v\n%s", c.Lines, out)
			}
		}
	})
}
