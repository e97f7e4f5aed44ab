package settings_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/account"
	"github.com/tocsin/tocsin/services/gateway/internal/schedule"
	gateway "github.com/tocsin/tocsin/services/gateway/internal/settings"
	"github.com/tocsin/tocsin/services/internal/settings"
)

const file = `
accounts:
  - id: "00011557"
    name: Acme
    timezone: America/Chicago
    active: true
    systemNotifications: true
    activeMode: weekend
    modes: [default, weekend]
    sites: [{id: main, name: Main street}]
    users:
      - {id: bob, name: Bob, email: bob@acme.test, enabled: true, levels: [LOW], timezone: Europe/Warsaw,
         windows: [{days: [SUN, MON], start: "22:00", end: "06:00"}], unsubscribed: [ALERT, "device:cam"]}
      - {id: ann, email: ann@acme.test, enabled: true, admin: true, levels: [HIGH, SYSTEM], windows: [{days: [SAT], start: "00:00", end: "24:00"}]}
    devices:
      - {id: cam, name: Front door, site: main,
         regions: [{id: door, name: Door, level: HIGH, enabled: true, modes: [weekend], recipients: [ann]}]}
`

// records are what the console writes for file.
func records(t *testing.T) []*kgo.Record {
	t.Helper()
	w, err := settings.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	change, err := settings.NewBook().Apply(w, settings.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var recs []*kgo.Record
	for _, s := range change.Settings {
		recs = append(recs, record(t, s))
	}
	return recs
}

func record(t *testing.T, s *settingsv1.Setting) *kgo.Record {
	t.Helper()
	key, ok := settings.KeyOf(s)
	if !ok {
		t.Fatalf("no key: %v", s)
	}
	value, err := s.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return &kgo.Record{Key: []byte(key.String()), Value: value}
}

func mustLoad(name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return loc
}

func same(a, b *time.Location) bool {
	return a == b || a != nil && b != nil && a.String() == b.String()
}

// Proves that what the console writes is what the machine reads, whatever
// order the keys come in, and that tombstones take it away again.
func TestViewOfTheConsolesRecords(t *testing.T) {
	want := &account.Settings{
		Known: true, Name: "Acme", Zone: mustLoad("America/Chicago"), Active: true, StatusMails: true, Mode: "weekend",
		Sites: map[string]string{"main": "Main street"},
		Devices: map[string]account.Device{"cam": {Name: "Front door", Site: "main", Regions: []account.Region{
			{ID: "door", Name: "Door", Level: account.High, Enabled: true, Modes: []string{"weekend"}, Recipients: []string{"ann"}},
		}}},
		Users: []account.User{
			{ID: "ann", Address: "ann@acme.test", Enabled: true, Admin: true, Levels: account.High | account.System,
				Windows: schedule.Windows{{Days: schedule.On(time.Saturday), Start: 0, End: 1440}}},
			{ID: "bob", Name: "Bob", Address: "bob@acme.test", Enabled: true, Levels: account.Low, Zone: mustLoad("Europe/Warsaw"),
				Windows:      schedule.Windows{{Days: schedule.On(time.Sunday, time.Monday), Start: 22 * 60, End: 6 * 60}},
				StoppedTypes: []account.Type{account.Alert}, StoppedDevices: []string{"cam"}},
		},
	}
	recs := records(t)
	for _, order := range []string{"as written", "backwards"} {
		v := gateway.New(slog.New(slog.DiscardHandler))
		for i := range recs {
			rec := recs[i]
			if order == "backwards" {
				rec = recs[len(recs)-1-i]
			}
			if err := v.Apply(rec); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, v.Account("00011557"), cmp.Comparer(same)); diff != "" {
			t.Errorf("%s (-want +view):\n%s", order, diff)
		}
		if got := v.Account("another"); got == nil || got.Known {
			t.Errorf("an account nobody set up: %+v", got)
		}
		for _, rec := range recs {
			if err := v.Apply(&kgo.Record{Key: rec.Key}); err != nil {
				t.Fatal(err)
			}
			if string(rec.Key) == "00011557/account/00011557" && v.Account("00011557").Known {
				t.Error("the account is known after its tombstone")
			}
		}
		if left := v.Accounts(); len(left) > 0 {
			t.Errorf("after all tombstones: %v", left)
		}
	}
}

// Proves that a record that cannot be read changes nothing and says what is wrong.
func TestUnreadableSettings(t *testing.T) {
	user := &settingsv1.Setting{AccountId: "a", Object: &settingsv1.Setting_User{User: &settingsv1.User{UserId: "ann", Email: "ann@a.test"}}}
	good := record(t, user)
	for _, tc := range []struct {
		name, key string
		value     []byte
		says      string
	}{
		{"no bytes of ours", "a/user/ann", []byte{0xff, 0xff}, "decode setting a/user/ann"},
		{"empty", "a/user/ann", []byte{}, "its value names"},
		{"another user", "a/user/bob", good.Value, "its value names"},
		{"another account", "b/user/ann", good.Value, "its value names"},
		{"another kind", "a/site/ann", good.Value, "its value names"},
		{"no kind", "a/pet/ann", good.Value, "not account/kind/id"},
		{"no key", "", good.Value, "not account/kind/id"},
	} {
		v := gateway.New(slog.New(slog.DiscardHandler))
		if err := v.Apply(good); err != nil {
			t.Fatal(err)
		}
		err := v.Apply(&kgo.Record{Key: []byte(tc.key), Value: tc.value})
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: error %v, want one that says %q", tc.name, err, tc.says)
		}
		if users := v.Account("a").Users; len(users) != 1 || users[0].Address != "ann@a.test" || len(v.Accounts()) != 1 {
			t.Errorf("%s: the view changed: %v %v", tc.name, users, v.Accounts())
		}
	}
}

// Proves that a zone nobody can load costs no mail: the next best is used, and
// it is logged once, without the address.
func TestUnknownZone(t *testing.T) {
	var log bytes.Buffer
	v := gateway.New(slog.New(slog.NewTextHandler(&log, nil)))
	for _, id := range []string{"ann", "bob"} {
		if err := v.Apply(record(t, &settingsv1.Setting{AccountId: "a", Object: &settingsv1.Setting_User{User: &settingsv1.User{
			UserId: id, Email: id + "@a.test", Timezone: "Mars/Olympus"}}})); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Apply(record(t, &settingsv1.Setting{AccountId: "a", Object: &settingsv1.Setting_Account{Account: &settingsv1.Account{
		AccountId: "a", Timezone: "Local"}}})); err != nil {
		t.Fatal(err)
	}
	s := v.Account("a")
	if s.Zone != nil || s.Users[0].Zone != nil || s.Users[1].Zone != nil {
		t.Errorf("zones %v, %v, %v, want none", s.Zone, s.Users[0].Zone, s.Users[1].Zone)
	}
	if n := strings.Count(log.String(), "Mars/Olympus"); n != 1 || strings.Contains(log.String(), "@a.test") {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}
