package account

import (
	"strconv"
	"time"
)

// Type of a notification.
type Type uint8

// The types; a status is any but Alert.
const (
	Alert Type = 1 + iota
	Offline
	Online
	InternetOffline
)

var typeNames = [...]string{Alert: "Alert", Offline: "Offline", Online: "Online", InternetOffline: "InternetOffline"}

// String is the name that people and metrics use, such as "InternetOffline".
func (t Type) String() string {
	if int(t) < len(typeNames) && typeNames[t] != "" {
		return typeNames[t]
	}
	return "Type(" + strconv.Itoa(int(t)) + ")"
}

// Stage of a notification.
type Stage uint8

// Only what is Due or Late is decided.
const (
	Pending Stage = 1 + iota
	Withdrawn
	Due
	Late
	Paused
	Resumed
)

// Notification is what the machine needs of one. It is never changed.
type Notification struct {
	ID     string
	Device string
	Type   Type
	Stage  Stage
	// Since is when it occurred, Hold the deliberate wait before telling.
	Since time.Time
	Hold  time.Duration
	// Outage is the id of the one it begins, changes or ends; empty for alerts.
	Outage string
	// Region of an alert; may be empty.
	Region string
	// Source is the message it came as, for the shell: never looked at here.
	Source any
}

// Reason says what became of a notification for a recipient, or of a mail.
type Reason uint8

// The reasons, in the order in which a decision lists them.
const (
	Mailed Reason = 1 + iota
	UnableToGetSettings
	NotificationsDisabled
	NoNotificationActions
	OutsideUsersSchedule
	NotToldOfOutage
	TooLate
	reasonsOfDecisions // end of those
	Sent
	Rejected
	Retrying
	Uncertain
	Expired
	Over
)

var reasonNames = [...]string{
	Mailed: "mailed", UnableToGetSettings: "unableToGetSettings", NotificationsDisabled: "notificationsDisabled",
	NoNotificationActions: "noNotificationActions", OutsideUsersSchedule: "outsideUsersSchedule",
	NotToldOfOutage: "notToldOfOutage", TooLate: "late", reasonsOfDecisions: "",
	Sent: "sent", Rejected: "rejected", Retrying: "retrying", Uncertain: "uncertain", Expired: "expired", Over: "over",
}

// String is the name that the rules and the metrics use.
func (r Reason) String() string {
	if int(r) < len(reasonNames) && reasonNames[r] != "" {
		return reasonNames[r]
	}
	return "Reason(" + strconv.Itoa(int(r)) + ")"
}

// Outcome is a reason and the recipients for whom it is the first that applies.
type Outcome struct {
	Reason Reason
	// Users in ascending order; none when the reason is the account's.
	Users []string
	// Mails of Mailed, in the order of Users.
	Mails []string
}
