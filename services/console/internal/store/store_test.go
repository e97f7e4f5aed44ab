package store

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/kafkatest"
	"github.com/tocsin/tocsin/services/internal/settings"
)

// lazyReader reads account-settings only when it is waited for.
type lazyReader struct {
	store *Store
	mu    sync.Mutex
	cl    *kgo.Client
	next  map[int32]int64
}

func (r *lazyReader) Ready() error { return nil }

func (r *lazyReader) Await(ctx context.Context, _ string, ends map[int32]int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		behind := false
		for p, end := range ends {
			behind = behind || r.next[p] < end
		}
		if !behind {
			return nil
		}
		fetches := r.cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, rec := range fetches.Records() {
			if !rec.Attrs.IsControl() {
				r.store.Record(rec)
			}
			r.next[rec.Partition] = rec.Offset + 1
		}
	}
}

// open is a store that has read nothing yet.
func open(t *testing.T, c *kafkatest.Cluster) *Store {
	t.Helper()
	s := New(c.Env(t), c.Topics, func() {})
	s.ReadBy(&lazyReader{store: s, next: map[int32]int64{}, cl: c.Client(t,
		kgo.ConsumeTopics(c.Topics.AccountSettings.Name), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))})
	return s
}

func write(t *testing.T, s *Store, text string) error {
	t.Helper()
	w, err := settings.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Apply(context.Background(), w, settings.Options{})
	return err
}

// A store that has read nothing of it yet still decides on what another wrote:
// it reads to the end before it decides.
func TestDecidesOnAllThatWasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		a, b := open(t, c), open(t, c)
		for range 2 {
			if err := write(t, a, `accounts: [{id: demo, name: `+time.Now().Format("N15h04m05s000")+`}]`); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		var conflict settings.Conflict
		if err := write(t, b, `accounts: [{id: demo, version: 1, name: late}]`); !errors.As(err, &conflict) {
			t.Errorf("err = %v, want a conflict", err)
		}
		if err := write(t, b, `accounts: [{id: demo, version: 2, name: right}]`); err != nil {
			t.Error(err)
		}
	})
}
