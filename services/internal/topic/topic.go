// Package topic is the one list of Tocsin's Kafka topics: name, key, how a
// partition is chosen, what cleans it up. It does not talk to Kafka; package
// kafka creates and checks what this list says.
package topic

import "time"

// By says which part of a record's key chooses its partition.
type By int

const (
	// ByKey hashes the whole key, "account/device".
	ByKey By = iota
	// ByAccount hashes the account id only, so that one owner has all of an account.
	ByAccount
)

// Topic is what Tocsin needs of one topic.
type Topic struct {
	Name string
	By   By
	// Compact topics keep the last record of each key; others keep Retention.
	Compact   bool
	Retention time.Duration
	// LogAppendTime: the broker's clock stamps the records (rule T1).
	LogAppendTime bool
}

// Set holds the full names, prefix included.
type Set struct {
	ETags, DeviceSettings, DeviceState                               Topic
	Notifications, AccountSettings, AccountState, Outbox, Deliveries Topic
	DeadLetters                                                      Topic
}

const day = 24 * time.Hour

// New is the list for a prefix such as "tocsin.".
func New(prefix string) Set {
	return Set{
		ETags:           Topic{Name: prefix + "etags", Retention: 7 * day, LogAppendTime: true},
		DeviceSettings:  Topic{Name: prefix + "device-settings", Compact: true},
		DeviceState:     Topic{Name: prefix + "device-state", Compact: true},
		Notifications:   Topic{Name: prefix + "notifications", By: ByAccount, Retention: 30 * day, LogAppendTime: true},
		AccountSettings: Topic{Name: prefix + "account-settings", By: ByAccount, Compact: true},
		AccountState:    Topic{Name: prefix + "account-state", By: ByAccount, Compact: true},
		Outbox:          Topic{Name: prefix + "outbox", By: ByAccount, Compact: true},
		Deliveries:      Topic{Name: prefix + "deliveries", By: ByAccount, Retention: 30 * day},
		DeadLetters:     Topic{Name: prefix + "dead-letters", Retention: 30 * day},
	}
}

// All lists the topics in two groups of equal partition count, then the dead
// letters: whoever owns a partition owns the others of its number in its group.
func (s Set) All() []Topic {
	return append(append(s.DeviceGroup(), s.AccountGroup()...), s.DeadLetters)
}

// DeviceGroup is the monitor's: etags and what is partitioned alike.
func (s Set) DeviceGroup() []Topic { return []Topic{s.ETags, s.DeviceSettings, s.DeviceState} }

// AccountGroup is the gateway's: notifications and what is partitioned alike.
func (s Set) AccountGroup() []Topic {
	return []Topic{s.Notifications, s.AccountSettings, s.AccountState, s.Outbox, s.Deliveries}
}
