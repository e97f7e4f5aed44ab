// Package store is the settings as Kafka has them, and the one way to change
// them. It owns tocsin.account-settings and tocsin.device-settings: nobody
// else writes there.
//
// It does not read Kafka (the service hands it the records) and knows neither
// YAML nor HTTP: package settings says what a write means.
//
// Invariant: a write is one transaction over both topics, decided on all that
// was written before it. Writers of one process take turns; those of several
// share a transactional id, so that beginning a write shuts out whoever
// (another console, a former life of this one) had begun one before.
//
//	take the id (aborts what was open) ─> read to the end ─> decide ─> produce ─> commit ─> read own records back
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/settings"
	"github.com/tocsin/tocsin/services/internal/topic"
)

// Reader is whoever reads account-settings and hands its records to Record.
type Reader interface {
	// Ready is nil once all that was there at the start has been handed over.
	Ready() error
	// Await returns when everything of topic below ends has been.
	Await(ctx context.Context, topic string, ends map[int32]int64) error
}

// UnavailableError says that Kafka could not be asked, or did not answer.
type UnavailableError struct {
	// Unknown is true where the commit was sent and not answered: the write
	// may have happened.
	Unknown bool
	Err     error
}

func (e *UnavailableError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("Kafka did not answer the commit, so the settings may or may not be written; get them and look: %v", e.Err)
	}
	return fmt.Sprintf("Kafka does not answer, nothing was written; try again: %v", e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// WriteTimeout bounds one write, waiting for Kafka included.
const WriteTimeout = 10 * time.Second

// attempts is how often a write begins anew when another console shut it out.
const attempts = 5

// Store is safe for use by several goroutines.
type Store struct {
	env    lifecycle.Env
	topics topic.Set
	reader Reader
	turn   chan struct{} // holds one token: the right to write

	mu      sync.RWMutex
	book    *settings.Book
	changed func()
}

// New is an empty store; changed is called after each record that was taken.
func New(env lifecycle.Env, topics topic.Set, changed func()) *Store {
	return &Store{env: env, topics: topics, turn: make(chan struct{}, 1), book: settings.NewBook(), changed: changed}
}

// ReadBy says who hands over the records; it is called before anything else.
func (s *Store) ReadBy(r Reader) { s.reader = r }

// Record takes one record of account-settings.
func (s *Store) Record(rec *kgo.Record) {
	s.mu.Lock()
	err := s.book.Load(rec.Key, rec.Value)
	s.mu.Unlock()
	if err != nil {
		s.env.Log.Error("settings record is not readable, the old setting stays", "topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset, "err", err)
		return
	}
	s.changed()
}

// Ready is nil once the store has all that was there at the start.
func (s *Store) Ready() error { return s.reader.Ready() }

// Export is the settings of the accounts named, or of all.
func (s *Store) Export(accounts ...string) (*settings.Document, error) {
	if err := s.reader.Ready(); err != nil {
		return nil, &UnavailableError{Err: err}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.book.Export(accounts...), nil
}

// Get is one object, or nil. It is shared: do not change it.
func (s *Store) Get(k settings.Key) *settingsv1.Setting {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.book.Get(k)
}

// Apply stores a write and returns what it changed, once this store shows it.
// The error is settings.Problems, settings.Conflict or *UnavailableError.
func (s *Store) Apply(ctx context.Context, w *settings.Write, o settings.Options) (*settings.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, WriteTimeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, &UnavailableError{Err: errors.New("other writes are under way")}
	}
	if err := s.reader.Ready(); err != nil {
		return nil, &UnavailableError{Err: err}
	}
	var c, last *settings.Change
	var err error
	for range attempts {
		c, err = s.once(ctx, w, o, last)
		if c != nil && err != nil {
			last = c
		}
		if err == nil || !shutOut(err) || ctx.Err() != nil {
			break
		}
		s.env.Log.Info("another console writes settings too, beginning anew", "err", err)
	}
	if err == nil {
		return c, nil
	}
	var away *UnavailableError
	if last != nil && errors.As(err, &away) {
		// An earlier try sent a commit, and nobody has looked since.
		return nil, &UnavailableError{Unknown: true, Err: away.Err}
	}
	return nil, err
}

// shutOut says that another holder of the transactional id took over: the
// next try sees what the other wrote.
func shutOut(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.InvalidProducerIDMapping) || errors.Is(err, kerr.InvalidTxnState)
}

// once makes one try. last is the change whose commit an earlier try sent and
// lost the answer of, or nil; if it turns out to be there, it is the result.
// An error of the commit comes with the change.
func (s *Store) once(ctx context.Context, w *settings.Write, o settings.Options, last *settings.Change) (*settings.Change, error) {
	cl, err := kgo.NewClient(append(s.env.Kafka.Options(s.env.Net.Dial),
		kgo.TransactionalID(s.env.Kafka.TopicPrefix+"console.settings"),
		kgo.TransactionTimeout(WriteTimeout),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MetadataMinAge(10*time.Millisecond),
	)...)
	if err != nil {
		return nil, &UnavailableError{Err: err}
	}
	defer cl.Close()
	unavailable := func(doing string, err error) error {
		return &UnavailableError{Err: fmt.Errorf("%s: %w", doing, err)}
	}
	if _, _, err := cl.ProducerID(ctx); err != nil {
		return nil, unavailable("begin a transaction", err)
	}
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, s.topics.AccountSettings.Name, s.topics.DeviceSettings.Name)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, unavailable("ask where the settings end", err)
	}
	accounts, devices := ends[s.topics.AccountSettings.Name], ends[s.topics.DeviceSettings.Name]
	if len(accounts) == 0 || len(devices) == 0 {
		return nil, unavailable("ask where the settings end", errors.New("the settings topics do not exist; make them with 'tocsin topics create'"))
	}
	upTo := map[int32]int64{}
	for p, e := range accounts {
		upTo[p] = e.Offset
	}
	if err := s.reader.Await(ctx, s.topics.AccountSettings.Name, upTo); err != nil {
		return nil, unavailable("read the settings", err)
	}

	s.mu.RLock()
	written := last != nil && s.book.Holds(last)
	c, err := s.book.Apply(w, o)
	s.mu.RUnlock()
	if written {
		return last, nil
	}
	if err != nil {
		return nil, err
	}
	recs, err := s.records(c, int32(len(accounts)), int32(len(devices)))
	if err != nil {
		return nil, err
	}
	if len(recs) == 0 {
		return c, nil
	}
	if err := cl.BeginTransaction(); err != nil {
		return nil, unavailable("begin a transaction", err)
	}
	produced := cl.ProduceSync(ctx, recs...)
	if err := produced.FirstErr(); err != nil {
		s.abort(cl)
		if p := tooLarge(produced); p != nil {
			return nil, p
		}
		return nil, unavailable("produce the settings", err)
	}
	// Not with the caller's context: a caller who hangs up must not leave the
	// transaction open and everybody waiting for it.
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), WriteTimeout)
	defer cancel()
	if err := cl.EndTransaction(commit, kgo.TryCommit); err != nil {
		if shutOut(err) {
			return c, unavailable("commit the settings", err)
		}
		return nil, &UnavailableError{Unknown: true, Err: err}
	}
	mine := map[int32]int64{}
	for _, r := range recs {
		if r.Topic == s.topics.AccountSettings.Name {
			mine[r.Partition] = max(mine[r.Partition], r.Offset+1)
		}
	}
	if err := s.reader.Await(commit, s.topics.AccountSettings.Name, mine); err != nil {
		return nil, &UnavailableError{Unknown: true, Err: err}
	}
	s.env.Log.Info("settings written", "objects", len(c.Settings), "removed", len(c.Removed), "devices", len(c.Devices)+len(c.RemovedDevices))
	return c, nil
}

// tooLarge names the records that Kafka does not take for their size.
func tooLarge(produced kgo.ProduceResults) error {
	var ps settings.Problems
	for _, r := range produced {
		if errors.Is(r.Err, kerr.MessageTooLarge) {
			ps = append(ps, settings.Problem{Reason: fmt.Sprintf("the record %s takes %d bytes in %s, more than Kafka takes at once; make the object smaller",
				r.Record.Key, len(r.Record.Value), r.Record.Topic)})
		}
	}
	if ps == nil {
		return nil
	}
	return ps
}

// abort takes back what was produced; if that fails too, the next holder of
// the id or the transaction's timeout does it.
func (s *Store) abort(cl *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := cl.EndTransaction(ctx, kgo.TryAbort); err != nil {
		s.env.Log.Log(ctx, slog.LevelInfo, "the transaction stays open until its timeout", "err", err)
	}
}

// records are a change as Kafka has it; accounts and devices are the
// partition counts of the two topics.
func (s *Store) records(c *settings.Change, accounts, devices int32) ([]*kgo.Record, error) {
	var out []*kgo.Record
	put := func(t topic.Topic, key, by string, n int32, kind string, value []byte) {
		out = append(out, &kgo.Record{
			Topic: t.Name, Partition: kafka.PartitionFor(by, n), Key: []byte(key), Value: value,
			Headers: []kgo.RecordHeader{{Key: kafka.HeaderType, Value: []byte(kind)}},
		})
	}
	const setting, device = "tocsin.settings.v1.Setting", "tocsin.settings.v1.DeviceSettings"
	for _, k := range c.Removed {
		put(s.topics.AccountSettings, k.String(), k.Account, accounts, setting, nil)
	}
	for _, o := range c.Settings {
		k, _ := settings.KeyOf(o)
		value, err := o.MarshalVT()
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", k, err)
		}
		put(s.topics.AccountSettings, k.String(), k.Account, accounts, setting, value)
	}
	for _, key := range c.RemovedDevices {
		put(s.topics.DeviceSettings, key, key, devices, device, nil)
	}
	for _, d := range c.Devices {
		key := d.GetAccountId() + "/" + d.GetDeviceId()
		value, err := d.MarshalVT()
		if err != nil {
			return nil, fmt.Errorf("encode settings of device %s: %w", key, err)
		}
		put(s.topics.DeviceSettings, key, key, devices, device, value)
	}
	return out, nil
}
