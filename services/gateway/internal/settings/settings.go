// Package settings is the gateway's view of the settings of the accounts in
// one partition: it follows tocsin.account-settings and gives the account
// machine what it reads, as plain values with zones loaded. It decides nothing
// and writes nothing.
//
// Invariant: what a View says of an account is a function of the last record
// of each key, in whatever order the keys came.
//
// A zone that cannot be loaded (the console refuses them, so this is an older
// or a newer zone database) does not cost a user any mail: it is logged once
// and the next best is used, for a user the account's, for an account UTC.
package settings

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a container without zone files decides as any other machine

	"github.com/twmb/franz-go/pkg/kgo"

	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/account"
	"github.com/tocsin/tocsin/services/gateway/internal/schedule"
	"github.com/tocsin/tocsin/services/internal/settings"
)

// View is what is known of a partition's accounts. One goroutine may use it.
type View struct {
	log      *slog.Logger
	accounts map[string]*account.Settings
	zones    map[string]*time.Location // by name; nil cannot be loaded
}

// New knows of nobody.
func New(log *slog.Logger) *View {
	return &View{log: log, accounts: map[string]*account.Settings{}, zones: map[string]*time.Location{}}
}

// unknown is every account's until something is heard.
var unknown account.Settings

// Account is never nil; it is good until the next Apply.
func (v *View) Account(id string) *account.Settings {
	if s := v.accounts[id]; s != nil {
		return s
	}
	return &unknown
}

// Apply takes one record; a nil value removes the object. After an error the
// view is as before.
func (v *View) Apply(rec *kgo.Record) error {
	key, err := settings.ParseKey(string(rec.Key))
	if err != nil {
		return err
	}
	if rec.Value == nil {
		v.remove(key)
		return nil
	}
	var s settingsv1.Setting
	if err := s.UnmarshalVT(rec.Value); err != nil {
		return fmt.Errorf("decode setting %s: %w", key, err)
	}
	if named, ok := settings.KeyOf(&s); !ok || named != key {
		return fmt.Errorf("setting %s: its value names %q", key, named)
	}
	v.put(key, &s)
	return nil
}

// put changes in place: a step of the machine keeps no part of what it read.
func (v *View) put(key settings.Key, s *settingsv1.Setting) {
	a := v.accounts[key.Account]
	if a == nil {
		a = &account.Settings{Devices: map[string]account.Device{}, Sites: map[string]string{}}
		v.accounts[key.Account] = a
	}
	switch o := s.GetObject().(type) {
	case *settingsv1.Setting_Account:
		a.Known = true
		a.Name = o.Account.GetName()
		a.Zone = v.zone(o.Account.GetTimezone(), key)
		a.Active, a.StatusMails = o.Account.GetActive(), o.Account.GetSystemNotifications()
		a.Mode = o.Account.GetActiveMode()
	case *settingsv1.Setting_User:
		if i, ok := findUser(a, key.ID); ok {
			a.Users[i] = v.user(o.User, key)
		} else {
			a.Users = slices.Insert(a.Users, i, v.user(o.User, key))
		}
	case *settingsv1.Setting_Site:
		a.Sites[key.ID] = o.Site.GetName()
	case *settingsv1.Setting_Device:
		a.Devices[key.ID] = device(o.Device)
	case *settingsv1.Setting_Mute, *settingsv1.Setting_Maintenance:
		// Rule G3 is not decided here yet.
	}
}

func (v *View) remove(key settings.Key) {
	a := v.accounts[key.Account]
	if a == nil {
		return
	}
	switch key.Kind {
	case settings.KindAccount:
		*a = account.Settings{Users: a.Users, Devices: a.Devices, Sites: a.Sites}
	case settings.KindUser:
		if i, ok := findUser(a, key.ID); ok {
			a.Users = slices.Delete(a.Users, i, i+1)
		}
	case settings.KindSite:
		delete(a.Sites, key.ID)
	case settings.KindDevice:
		delete(a.Devices, key.ID)
	}
	if !a.Known && len(a.Users)+len(a.Sites)+len(a.Devices) == 0 {
		delete(v.accounts, key.Account)
	}
}

func findUser(a *account.Settings, id string) (int, bool) {
	return slices.BinarySearchFunc(a.Users, id, func(u account.User, id string) int { return cmp.Compare(u.ID, id) })
}

func (v *View) user(u *settingsv1.User, key settings.Key) account.User {
	user := account.User{
		ID: u.GetUserId(), Name: u.GetName(), Address: u.GetEmail(),
		Enabled: u.GetEnabled(), Admin: u.GetAdmin(),
		Zone:    v.zone(u.GetTimezone(), key),
		Foreign: u.GetMasterAccountId() != "",
	}
	for _, l := range u.GetLevels() {
		user.Levels |= level(l)
	}
	for _, w := range u.GetWindows() {
		user.Windows = append(user.Windows, window(w))
	}
	for _, stopped := range u.GetUnsubscribed() {
		if id, ok := strings.CutPrefix(stopped, "device:"); ok {
			user.StoppedDevices = append(user.StoppedDevices, id)
			continue
		}
		if t, ok := types[stopped]; ok {
			user.StoppedTypes = append(user.StoppedTypes, t)
		}
	}
	return user
}

var types = map[string]account.Type{
	notificationv1.Notification_ALERT.String():            account.Alert,
	notificationv1.Notification_OFFLINE.String():          account.Offline,
	notificationv1.Notification_ONLINE.String():           account.Online,
	notificationv1.Notification_INTERNET_OFFLINE.String(): account.InternetOffline,
}

func level(l settingsv1.Level_Value) account.Level {
	switch l {
	case settingsv1.Level_LOW:
		return account.Low
	case settingsv1.Level_HIGH:
		return account.High
	case settingsv1.Level_SYSTEM:
		return account.System
	}
	return 0
}

func window(w *settingsv1.Window) schedule.Window {
	out := schedule.Window{
		Start: int(min(w.GetStartMinutes(), schedule.MinutesOfDay)),
		End:   int(min(w.GetEndMinutes(), schedule.MinutesOfDay)),
	}
	for _, d := range w.GetDays() {
		if d >= settingsv1.Window_MON && d <= settingsv1.Window_SUN {
			out.Days |= schedule.On(time.Weekday(d % 7)) // SUN is 7 there and 0 here
		}
	}
	return out
}

func device(d *settingsv1.Device) account.Device {
	out := account.Device{Name: d.GetName(), Site: d.GetSite()}
	for _, r := range d.GetRegions() {
		out.Regions = append(out.Regions, account.Region{
			ID: r.GetRegionId(), Name: r.GetName(), Level: level(r.GetLevel()), Enabled: r.GetEnabled(),
			Modes: r.GetModes(), Recipients: r.GetRecipients(),
		})
	}
	return out
}

// zone is nil for "" and for what cannot be loaded.
func (v *View) zone(name string, key settings.Key) *time.Location {
	if name == "" {
		return nil
	}
	loc, seen := v.zones[name]
	if !seen {
		var err error
		loc, err = time.LoadLocation(name)
		if err != nil || loc == time.Local { // "Local" is the machine's, not a user's
			loc = nil
			v.log.Warn("a time zone is unknown here; the account's is used instead, or UTC",
				"account_id", key.Account, "kind", key.Kind, "id", key.ID, "zone", name)
		}
		v.zones[name] = loc
	}
	return loc
}
