// Package settings is the text and the meaning of Tocsin's settings: it turns
// the YAML or JSON that people write (contract: Settings) into messages of
// settings.v1 and back, merges a write into what is there, checks references
// and versions, and resolves what the monitor needs of a device.
//
// It does no I/O and knows no clock: the console reads a [Book] from
// tocsin.account-settings and writes the [Change] that [Book.Apply] returns;
// tocsin replay fills a Book from a file.
//
//	text ──Parse──> Write ──Book.Apply──> Change ──Book.Commit (or Kafka, and Book.Load)──> Book
//	text <─Document.YAML─ Document <─Book.Export──────────────────────────────────────────────┘
//
// Invariant: a Write is applied whole or not at all, a Setting in a Book is
// never changed in place, and apply(export(x)) is x. The same Book and Write
// give the same Change, in the same order.
package settings

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
)

// Kind is what an object is; its text is the middle part of a record's key.
type Kind string

// The kinds, as contract and keys name them.
const (
	KindAccount     Kind = "account"
	KindUser        Kind = "user"
	KindSite        Kind = "site"
	KindDevice      Kind = "device"
	KindMute        Kind = "mute"
	KindMaintenance Kind = "maintenance"
)

// order is the order in which kinds are written and listed.
var order = map[Kind]int{KindAccount: 0, KindSite: 1, KindUser: 2, KindDevice: 3, KindMute: 4, KindMaintenance: 5}

// Key names one object.
type Key struct {
	Account string
	Kind    Kind
	ID      string
}

// String is the key of the object's record: "account/kind/id".
func (k Key) String() string { return k.Account + "/" + string(k.Kind) + "/" + k.ID }

// ParseKey reads what String wrote.
func ParseKey(s string) (Key, error) {
	account, rest, ok := strings.Cut(s, "/")
	kind, id, ok2 := strings.Cut(rest, "/")
	k := Key{Account: account, Kind: Kind(kind), ID: id}
	if _, known := order[k.Kind]; !ok || !ok2 || !known || account == "" || id == "" {
		return Key{}, fmt.Errorf("settings key %q is not account/kind/id", s)
	}
	return k, nil
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Account, b.Account),
		cmp.Compare(order[a.Kind], order[b.Kind]),
		cmp.Compare(a.ID, b.ID),
	)
}

// KeyOf is the key of a setting; ok is false when it holds no object.
func KeyOf(s *settingsv1.Setting) (k Key, ok bool) {
	k.Account = s.GetAccountId()
	switch o := s.GetObject().(type) {
	case *settingsv1.Setting_Account:
		k.Kind, k.ID = KindAccount, o.Account.GetAccountId()
	case *settingsv1.Setting_User:
		k.Kind, k.ID = KindUser, o.User.GetUserId()
	case *settingsv1.Setting_Site:
		k.Kind, k.ID = KindSite, o.Site.GetSiteId()
	case *settingsv1.Setting_Device:
		k.Kind, k.ID = KindDevice, o.Device.GetDeviceId()
	case *settingsv1.Setting_Mute:
		k.Kind, k.ID = KindMute, o.Mute.GetMuteId()
	case *settingsv1.Setting_Maintenance:
		k.Kind, k.ID = KindMaintenance, o.Maintenance.GetMaintenanceId()
	default:
		return Key{}, false
	}
	return k, k.Account != "" && k.ID != ""
}

// objects are the settings of one account.
type objects map[Key]*settingsv1.Setting

// Book is all settings there are. The zero value is not usable: see [NewBook].
// Its owner guards it; it has no lock of its own.
type Book struct {
	accounts map[string]objects
}

// NewBook is a book without settings.
func NewBook() *Book { return &Book{accounts: map[string]objects{}} }

// Load takes one record of tocsin.account-settings; a nil value removes the
// object. On an error the book is as before.
func (b *Book) Load(key, value []byte) error {
	k, err := ParseKey(string(key))
	if err != nil {
		return err
	}
	if value == nil {
		b.remove(k)
		return nil
	}
	s := &settingsv1.Setting{}
	if err := s.UnmarshalVT(value); err != nil {
		return fmt.Errorf("settings record %s: %w", k, err)
	}
	if got, ok := KeyOf(s); !ok || got != k {
		return fmt.Errorf("settings record %s: its value names %q", k, got)
	}
	b.put(k, s)
	return nil
}

// Commit takes a change as done.
func (b *Book) Commit(c *Change) {
	for _, k := range c.Removed {
		b.remove(k)
	}
	for _, s := range c.Settings {
		if k, ok := KeyOf(s); ok {
			b.put(k, s)
		}
	}
}

// Holds says whether everything a change writes is in the book as it wrote it.
func (b *Book) Holds(c *Change) bool {
	for _, k := range c.Removed {
		if b.Get(k) != nil {
			return false
		}
	}
	for _, s := range c.Settings {
		if k, _ := KeyOf(s); !proto.Equal(b.Get(k), s) {
			return false
		}
	}
	return true
}

func (b *Book) put(k Key, s *settingsv1.Setting) {
	if b.accounts[k.Account] == nil {
		b.accounts[k.Account] = objects{}
	}
	b.accounts[k.Account][k] = s
}

func (b *Book) remove(k Key) {
	delete(b.accounts[k.Account], k)
	if len(b.accounts[k.Account]) == 0 {
		delete(b.accounts, k.Account)
	}
}

// Accounts are the ids of all accounts, in order.
func (b *Book) Accounts() []string { return slices.Sorted(maps.Keys(b.accounts)) }

// Settings are all objects of an account, copies of master users included, in
// the order of their keys. They are shared: do not change them.
func (b *Book) Settings(account string) []*settingsv1.Setting {
	return b.accounts[account].sorted()
}

// Get is one object, or nil.
func (b *Book) Get(k Key) *settingsv1.Setting { return b.accounts[k.Account][k] }

// Devices are the resolved settings of an account's devices, by device id.
func (b *Book) Devices(account string) []*settingsv1.DeviceSettings {
	return resolveAll(account, b.accounts[account])
}

func (o objects) sorted() []*settingsv1.Setting {
	keys := slices.SortedFunc(maps.Keys(o), compareKeys)
	out := make([]*settingsv1.Setting, len(keys))
	for i, k := range keys {
		out[i] = o[k]
	}
	return out
}

func (o objects) account(id string) *settingsv1.Account {
	return o[Key{id, KindAccount, id}].GetAccount()
}

func (o objects) site(account, id string) *settingsv1.Site {
	return o[Key{account, KindSite, id}].GetSite()
}

func (o objects) user(account, id string) *settingsv1.User {
	return o[Key{account, KindUser, id}].GetUser()
}

func (o objects) device(account, id string) *settingsv1.Device {
	return o[Key{account, KindDevice, id}].GetDevice()
}
