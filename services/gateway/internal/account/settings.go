package account

import (
	"cmp"
	"slices"
	"time"

	"github.com/tocsin/tocsin/services/gateway/internal/schedule"
)

// Settings are one account's, as the machine reads them. The machine keeps no
// part of them: what a mail needs is copied into the mail when it is decided.
type Settings struct {
	// Known is false for an account nobody has set up (rule G1).
	Known bool
	Name  string
	// Zone is where a user without an own zone lives; nil is UTC.
	Zone *time.Location
	// Active is the account's own switch, StatusMails that of its system
	// notifications: status only.
	Active, StatusMails bool
	// Mode is the alert mode that is on.
	Mode string
	// Users in ascending order of ID.
	Users   []User
	Devices map[string]Device
	// Sites are names by site id.
	Sites map[string]string
}

// Level is what a user wants to be told, and what a region is worth.
type Level uint8

// Levels are bits, so that a user's are one number.
const (
	Low Level = 1 << iota
	High
	System
)

// User is one possible recipient.
type User struct {
	ID, Name, Address string
	Enabled, Admin    bool
	// Levels the user holds.
	Levels Level
	// Zone is nil for a user who lives in the account's.
	Zone    *time.Location
	Windows schedule.Windows
	// Foreign is a user of the master account, who gets status only (rule G2).
	Foreign bool
	// StoppedTypes and StoppedDevices are what the user unsubscribed from.
	StoppedTypes   []Type
	StoppedDevices []string
}

// Device is what the gateway needs of one.
type Device struct {
	Name string
	// Site is an id.
	Site string
	// Regions; none: the whole frame is one, level Low (rule M1).
	Regions []Region
}

// Region is a part of the frame in which motion counts.
type Region struct {
	ID, Name string
	Level    Level
	Enabled  bool
	// Modes in which it counts; none: all.
	Modes []string
	// Recipients are user ids; none: whoever holds the level.
	Recipients []string
}

// wholeFrame is the region of a device without any, and what stands in for a
// region that the device's settings do not have: a camera whose region was
// mistyped or is newer than the settings is told about at the lowest level
// rather than not at all.
var wholeFrame = Region{Level: Low, Enabled: true}

// region is that of an alert.
func (s *Settings) region(device, id string) Region {
	for _, r := range s.Devices[device].Regions {
		if r.ID == id {
			return r
		}
	}
	return wholeFrame
}

// user is nil for an id that the account does not have.
func (s *Settings) user(id string) *User {
	i, ok := slices.BinarySearchFunc(s.Users, id, func(u User, id string) int { return cmp.Compare(u.ID, id) })
	if !ok {
		return nil
	}
	return &s.Users[i]
}

// zone is where u lives.
func (s *Settings) zone(u *User) *time.Location {
	switch {
	case u.Zone != nil:
		return u.Zone
	case s.Zone != nil:
		return s.Zone
	}
	return time.UTC
}
