package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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

// A write that is shut out at its commit may have happened: when no later try
// could look, because those are shut out sooner, the answer says so.
func TestShutOutAtCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		s := open(t, c)
		commits := 0
		c.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if commits++; commits == 1 {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ProducerFenced, Count: -1})
			}
			return nil, nil, false
		})
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.ProducerFenced, Count: -1})
		var away *UnavailableError
		if err := write(t, s, `accounts: [{id: demo, name: new}]`); !errors.As(err, &away) || !away.Unknown {
			t.Errorf("err = %v, want that nobody knows", err)
		}
		if commits != 1 {
			t.Errorf("%d commits, want 1", commits)
		}
	})
}

// A record that is too large for Kafka is the writer's to make smaller, not a
// Kafka that is away.
func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		var text strings.Builder
		text.WriteString("accounts:\n- id: demo\n  devices:\n  - id: big\n    regions:\n")
		for r := range 64 {
			fmt.Fprintf(&text, "    - id: r%d\n      modes:\n", r)
			for m := range 32 {
				fmt.Fprintf(&text, "      - \"%02d%s\"\n", m, strings.Repeat("€", 190))
			}
		}
		err := write(t, open(t, c), text.String())
		var problems settings.Problems
		if !errors.As(err, &problems) || !strings.Contains(err.Error(), "demo/device/big") {
			t.Errorf("err = %.300v, want a problem of the device", err)
		}
		if err := write(t, open(t, c), `accounts: [{id: demo, name: small}]`); err != nil {
			t.Error(err)
		}
	})
}
