package account

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"
)

// A Part is what is kept of an account under one key: an *Undecided, an
// *Outage, the *Recent or a *Mail. Once put, a part is never changed: a step
// puts a new one in its place, which is what makes an undo cheap and sure.
type Part interface{ Key() Key }

// Key names a part within its account. Keys sort.
type Key struct {
	Kind Kind
	// ID is a mail's or an outage's; empty for others.
	ID string
	// Offset is an undecided notification's; 0 for others.
	Offset int64
}

// Kind of a part.
type Kind uint8

// The kinds.
const (
	KindUndecided Kind = 1 + iota
	KindOutage
	KindRecent
	KindMail
)

// Undecided is a notification that waits for a decision.
type Undecided struct {
	Notification *Notification
	// Offset is its place in the partition's log, Read the clock there.
	Offset int64
	Read   time.Time
	// Trace is the context of its trace; opaque.
	Trace string
	// Awaited are the users of a recovery who are not decided yet because an
	// attempt to tell them of the outage is under way, in ascending order.
	// None: nobody is decided.
	Awaited []string
}

// Key of the part.
func (u *Undecided) Key() Key { return Key{Kind: KindUndecided, Offset: u.Offset} }

// Outage remembers who was mailed about it (rule G8).
type Outage struct {
	ID     string
	Device string
	// Told, in the order in which the mails were decided.
	Told []Told
	// Ended says that the recovery was read, and only awaited users are left.
	Ended bool
}

// Key of the part.
func (o *Outage) Key() Key { return Key{Kind: KindOutage, ID: o.ID} }

// Told is one mail about an outage.
type Told struct {
	User, Mail, MessageID string
	Status                ToldStatus
}

// ToldStatus is how a mail about an outage ended.
type ToldStatus uint8

// A mail that is not settled is ToldOpen: it says itself how it stands.
const (
	ToldOpen ToldStatus = iota
	ToldYes             // sent, or perhaps
	ToldNo              // rejected, expired or withdrawn
)

// recentMost bounds Recent.
const recentMost = 64

// Recent holds hashes of the notifications decided last, oldest first.
type Recent struct{ Hashes []uint64 }

// Key of the part.
func (r *Recent) Key() Key { return Key{Kind: KindRecent} }

func (r *Recent) has(notification string) bool {
	return r != nil && slices.Contains(r.Hashes, hash(notification))
}

// with is r and one more, without the oldest when it is full.
func (r *Recent) with(notification string) *Recent {
	var old []uint64
	if r != nil {
		old = r.Hashes
	}
	if len(old) == recentMost {
		old = old[1:]
	}
	return &Recent{Hashes: append(slices.Clone(old), hash(notification))}
}

// hash is the first 8 bytes of SHA-256.
func hash(s string) uint64 {
	sum := sha256.Sum256([]byte(s))
	return binary.BigEndian.Uint64(sum[:])
}

// MailID is that of the mail that tells user of a notification: 32 hex digits.
func MailID(notification, user string) string {
	sum := sha256.Sum256([]byte(notification + "\x00" + user))
	return hex.EncodeToString(sum[:16])
}

// Mail is one message to one user, from its decision until it is settled.
//
//	           attempt begins
//	Waiting ──────────────────> Attempting
//	   ^   <──────────────────      │ a result, or the lease ends
//	   │      to be tried again     v
//	   └──────────────────────── settled (gone), or
//	 a late fact that it failed  Unanswered: nothing more is tried,
//	                             a late fact may come until it expires
type Mail struct {
	ID, User string
	Type     Type
	// To whom, as the settings were when it was decided.
	Address, Name string
	// Zone is the IANA name of that in which times are written.
	Zone    string
	Account string // the account's name
	Items   []Item
	// MessageID and Date are the same on every try.
	MessageID string
	Date      time.Time
	// References are Message-IDs of earlier mails of the outage, oldest first.
	References []string
	// Outage that it tells of or ends; empty for alerts.
	Outage string

	Status MailStatus
	// Attempt is the number of the one under way or last made, from 1.
	Attempt int
	// Uncertain counts attempts of which the mailer said that no answer came;
	// Silent are those whose lease ended without a word: a fact may come yet.
	Uncertain int
	Silent    []int
	// Sent: an earlier attempt turned out to be sent while this one was under way.
	Sent bool
	// Over: the outage has ended, so nothing more is tried.
	Over bool
	// Lease ends the attempt under way; Next is the earliest start of the next
	// one; after Expire none starts.
	Lease, Next, Expire time.Time
}

// Key of the part.
func (m *Mail) Key() Key { return Key{Kind: KindMail, ID: m.ID} }

// unsure counts the attempts that may have reached the recipient.
func (m *Mail) unsure() int { return m.Uncertain + len(m.Silent) }

// mayHaveArrived is what makes a user told of an outage (rule G8).
func (m *Mail) mayHaveArrived() bool { return m.Sent || m.unsure() > 0 }

// Item is a notification as a mail tells it.
type Item struct {
	Notification         *Notification
	Device, Site, Region string // names
	// Trace is the context of the decision; opaque.
	Trace string
}

// MailStatus is where a mail stands.
type MailStatus uint8

// The statuses.
const (
	Waiting MailStatus = 1 + iota
	Attempting
	Unanswered
)

// Result is how an attempt ended (rules, section 10).
type Result struct {
	Mail    string
	Attempt int
	// Outcome is Sent, Rejected, Retrying or Uncertain.
	Outcome Reason
	// End is when, by the mailer's clock.
	End time.Time
	// Source is the message it came as, for the shell: never looked at here.
	Source any
}
