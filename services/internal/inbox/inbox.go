// Package inbox is the mail sink of `tocsin up` and of tests: an SMTP server
// that takes every mail and keeps it, one file a mail, for people to read.
//
// It owns its directory and what is in it. It relays nothing, knows no users,
// offers neither TLS nor login, and must therefore listen on loopback only;
// whoever opens the listener sees to that.
//
// Invariant: a mail that was answered with 250 is on disk (written beside,
// synced, renamed, directory synced) and survives kill -9; one that was not
// answered may be there too, as with any SMTP server. Every copy that arrives
// is kept: a repeat of a Message-ID to the same recipient is marked (Copy), not
// hidden, because a repeat is what somebody looking at the inbox wants to see.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Defaults of the bounds.
const (
	// DefaultKeep messages are kept at least before the oldest go.
	DefaultKeep = 1000
	// DefaultMaxBytes is the size from which on a message is refused (552).
	DefaultMaxBytes = 10 << 20
)

// ErrNotFound says that no message has the id; it may have been one of the
// oldest, which go when the inbox is full.
var ErrNotFound = errors.New("no such message in the inbox")

// Summary is a message as a list shows it.
type Summary struct {
	// ID names the message in this inbox. Later messages have larger ids, also
	// as text.
	ID          string
	ReceiveTime time.Time
	// Sender and Recipients are the envelope's.
	Sender     string
	Recipients []string
	// From, To and Subject are the header's, decoded (RFC 2047).
	From, To, Subject string
	// Date is zero where the message has none that can be read.
	Date time.Time
	// MessageID is without the angle brackets; it may be empty.
	MessageID string
	// Copy is 1 for the first message with this MessageID to one of these
	// recipients, 2 for the next, among the messages kept.
	Copy int
	// SizeBytes counts the message as it came over the wire.
	SizeBytes int
	// Problem says why the message could not be read as a mail; empty if it could.
	Problem string
}

// Field is one header field, decoded.
type Field struct{ Name, Value string }

// Message is a message as a reader shows it.
type Message struct {
	Summary
	// Header has the message's fields in their order, without those that the
	// inbox put before them.
	Header []Field
	// Text and HTML are the bodies, decoded to UTF-8; either may be empty.
	// HTML is what came: show it in a sandbox.
	Text, HTML string
	// Raw is the message as it came over the wire.
	Raw []byte
}

// Get is the value of the first field of that name, case-insensitive, or "".
func (m Message) Get(name string) string {
	for _, f := range m.Header {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// Option changes a default of Open.
type Option func(*Inbox)

// Keep sets how many messages are kept at least; up to a tenth more may be there.
func Keep(n int) Option { return func(in *Inbox) { in.keep = n } }

// MaxBytes sets the largest message taken.
func MaxBytes(n int64) Option { return func(in *Inbox) { in.maxBytes = n } }

// Log sets where the inbox logs; without it, nowhere.
func Log(l *slog.Logger) Option { return func(in *Inbox) { in.log = l } }

// Inbox is a store of messages and the SMTP server before it. All its methods
// may be called at once from anywhere.
type Inbox struct {
	keep     int
	maxBytes int64
	log      *slog.Logger
	files    store

	mu       sync.Mutex
	list     []Summary // oldest first
	next     uint64    // number of the next message
	watchers map[chan struct{}]struct{}
}

// Open reads what dir holds, creating it if need be. An empty dir keeps
// everything in memory, as tests want it. Only one Inbox may use a directory at
// a time; the caller holds the lock of the data directory around it.
func Open(dir string, opts ...Option) (*Inbox, error) {
	in := &Inbox{
		keep:     DefaultKeep,
		maxBytes: DefaultMaxBytes,
		log:      slog.New(slog.DiscardHandler),
		next:     1,
		watchers: make(map[chan struct{}]struct{}),
	}
	for _, o := range opts {
		o(in)
	}
	if in.keep < 1 {
		return nil, fmt.Errorf("open inbox: it must keep at least one message, not %d", in.keep)
	}
	if dir == "" {
		in.files = &memory{messages: make(map[uint64][]byte)}
		return in, nil
	}
	d, numbers, err := openDirectory(dir)
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	in.files = d
	for _, n := range numbers {
		in.next = n + 1
		data, err := d.get(n)
		if err != nil {
			// The others can still be read; the file stays for whoever looks into it.
			in.log.Warn("a message of the inbox cannot be read and is left out", "path", d.path(n), "err", err)
			continue
		}
		in.admit(summarize(n, data))
	}
	in.trim()
	return in, nil
}

// Add stores one message that came from sender to recipients; data is the
// message as it came over the wire. On nil it is safe.
func (in *Inbox) Add(sender string, recipients []string, data []byte) (Summary, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	number := in.next
	file := appendEnvelope(nil, envelope{sender: sender, recipients: recipients, received: time.Now()})
	file = append(file, data...)
	if err := in.files.put(number, file); err != nil {
		return Summary{}, fmt.Errorf("store message %d: %w", number, err)
	}
	in.next++
	s := in.admit(summarize(number, file))
	in.trim()
	for w := range in.watchers {
		select {
		case w <- struct{}{}:
		default: // it has one to read already
		}
	}
	return s, nil
}

// admit counts the copies of s and puts it at the end of the list.
func (in *Inbox) admit(s Summary) Summary {
	s.Copy = 1
	for _, old := range in.list {
		if s.MessageID != "" && old.MessageID == s.MessageID && overlap(old.Recipients, s.Recipients) {
			s.Copy = old.Copy + 1
		}
	}
	in.list = append(in.list, s)
	return s
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// trim removes the oldest messages once there are a tenth more than are to be
// kept, so that a full inbox says so now and then and not with every mail.
func (in *Inbox) trim() {
	if len(in.list) <= in.keep+in.keep/10 {
		return
	}
	old := in.list[:len(in.list)-in.keep]
	for _, s := range old {
		if err := in.files.remove(numberOf(s.ID)); err != nil {
			in.log.Warn("an old message of the inbox could not be removed", "message", s.ID, "err", err)
		}
	}
	in.log.Info("the inbox is full: its oldest messages were removed", "removed", len(old), "kept", in.keep)
	in.list = slices.Clone(in.list[len(old):])
}

// List has the newest messages first, at most limit of them; limit 0 is all.
func (in *Inbox) List(limit int) []Summary {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := len(in.list)
	if limit > 0 && limit < n {
		n = limit
	}
	out := slices.Clone(in.list[len(in.list)-n:])
	slices.Reverse(out)
	return out
}

// Get reads the message with that id; ErrNotFound if there is none.
func (in *Inbox) Get(id string) (Message, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	i := slices.IndexFunc(in.list, func(s Summary) bool { return s.ID == id })
	if i < 0 {
		return Message{}, fmt.Errorf("message %q: %w", id, ErrNotFound)
	}
	data, err := in.files.get(numberOf(id))
	if err != nil {
		return Message{}, fmt.Errorf("read message %q: %w", id, err)
	}
	_, raw := cutEnvelope(data)
	m := parse(raw)
	m.Summary = in.list[i]
	return m, nil
}

// Subscribe returns a channel that has a value when a message came since the
// last one was taken from it: read it, then List. A slow reader misses no news,
// for several messages make one value. The caller calls stop when done.
func (in *Inbox) Subscribe() (news <-chan struct{}, stop func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	w := make(chan struct{}, 1)
	in.watchers[w] = struct{}{}
	return w, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		delete(in.watchers, w)
	}
}

// Await returns once the inbox holds at least n messages, all of them, oldest
// first, as tests want it; or the context's error and what is there by then.
func (in *Inbox) Await(ctx context.Context, n int) ([]Summary, error) {
	news, stop := in.Subscribe()
	defer stop()
	for {
		all := in.List(0)
		slices.Reverse(all)
		if len(all) >= n {
			return all, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return all, fmt.Errorf("%d of %d messages came: %w", len(all), n, ctx.Err())
		}
	}
}
