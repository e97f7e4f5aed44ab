package consume

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kslog"

	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/topic"
)

const (
	// maxPoll bounds a transaction: when behind, more records a transaction is
	// faster up to about here, and undo needs memory for all of them.
	maxPoll = 100_000
	// endGap is waited after each transaction: the markers are being written,
	// and producing before they are costs a retry of 20 ms and some aborts.
	endGap = 2 * time.Millisecond
	// abortGap is waited after a transaction that was not committed.
	abortGap = 20 * time.Millisecond
	// restoreAgain is the wait before a restore that failed is tried again.
	restoreAgain = 5 * time.Second
)

// member is one member of the group: one loop and two clients. Everything
// but the mailbox belongs to the loop's goroutine.
type member struct {
	cfg        Config
	env        lifecycle.Env
	log        *slog.Logger
	id         string // the transactional id
	life       string // names this member among those that had its id before
	partitions counts
	metrics    *metrics

	session *kgo.GroupTransactSession // the log, in the group; effects, in transactions
	side    *kgo.Client               // settings, offsets; ticks, in no transaction

	owned map[int32]*owned
	ticks uint64         // sent so far
	tasks sync.WaitGroup // restores and the follower of settings

	mail   mailbox
	status atomic.Pointer[string] // why it is not ready; nil is ready
}

// mailbox takes what other goroutines have for the loop. It is never full: the
// group's hooks must not wait.
type mailbox struct {
	mu    sync.Mutex
	queue []func()
	wake  context.CancelFunc // ends the poll under way
}

func (b *mailbox) post(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, fn)
	if b.wake != nil {
		b.wake()
	}
}

func (b *mailbox) take() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queue
	b.queue = nil
	return q
}

// sleeping says that wake ends the wait; it is called at once if there is mail.
func (b *mailbox) sleeping(wake context.CancelFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake = wake
	if len(b.queue) > 0 {
		wake()
	}
}

func newMember(cfg Config, env lifecycle.Env, n int, partitions counts, metrics *metrics) (*member, error) {
	m := &member{
		cfg: cfg, env: env, partitions: partitions, metrics: metrics,
		id:    fmt.Sprintf("%s-%s-%d", cfg.Group, cfg.Instance, n),
		life:  rand.Text(),
		owned: map[int32]*owned{},
	}
	m.log = env.Log.With("group", cfg.Group, "member", n)
	starting := "joining the group"
	m.status.Store(&starting)

	logger := kgo.WithLogger(quiet{kslog.New(m.log)})
	session, err := kgo.NewGroupTransactSession(append(env.Kafka.Options(env.Net.Dial),
		logger,
		kgo.ConsumerGroup(cfg.Group),
		kgo.ConsumeTopics(cfg.Log.Name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(cfg.Timing.FetchWait),
		kgo.SessionTimeout(cfg.Timing.Session),
		kgo.HeartbeatInterval(cfg.Timing.Heartbeat),
		kgo.TransactionalID(m.id),
		kgo.TransactionTimeout(cfg.Timing.Transaction),
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, assigned map[string][]int32) {
			cl.PauseFetchPartitions(assigned)
			ids := assigned[cfg.Log.Name]
			m.mail.post(func() { m.assign(ids) })
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
			ids := revoked[cfg.Log.Name]
			m.mail.post(func() { m.release("revoked", ids) })
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			ids := lost[cfg.Log.Name]
			m.mail.post(func() { m.release("lost", ids) })
		}),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make the group client: %w", err)
	}
	m.session = session
	m.side, err = kgo.NewClient(append(env.Kafka.Options(env.Net.Dial),
		logger,
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(cfg.Timing.FetchWait),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{}),
		kgo.ProducerLinger(0),
	)...)
	if err != nil {
		session.Close()
		return nil, fmt.Errorf("make the side client: %w", err)
	}
	return m, nil
}

// run is the loop. It returns nil when ctx ends, and an error when the clients
// are of no more use and a new member has to be made.
func (m *member) run(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	defer m.stop(cancel)
	// Asked early, this ends what a former process with this id left open.
	if _, _, err := m.session.Client().ProducerID(inner); err != nil && ctx.Err() == nil {
		return fmt.Errorf("learn the producer id of %s: %w", m.id, err)
	}
	if len(m.cfg.Settings) > 0 {
		m.tasks.Go(func() { m.follow(inner) })
	}
	for ctx.Err() == nil {
		next := m.sendTicks(inner)
		fetches := m.poll(inner, next)
		if fetches.IsClientClosed() {
			return errors.New("the group client was closed")
		}
		m.logErrors(fetches)
		if fetches.NumRecords() > 0 {
			if err := m.transact(ctx, fetches); err != nil {
				return err
			}
		} else {
			// Mail ends a poll at once. From a poll to AllowRebalance nothing
			// is assigned or revoked, so what the mail says is still true.
			for _, fn := range m.mail.take() {
				fn()
			}
			m.session.AllowRebalance()
		}
		m.report()
	}
	return nil
}

// stop leaves the group, so that the others take over at once, and waits for
// all that this member started.
func (m *member) stop(cancel context.CancelFunc) {
	cancel()
	m.session.CloseAllowingRebalance()
	for _, o := range m.owned {
		m.drop(o)
	}
	m.tasks.Wait()
	m.side.Close()
}

func (m *member) poll(ctx context.Context, until time.Time) kgo.Fetches {
	var cancel context.CancelFunc
	if until.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, until)
	}
	defer cancel()
	m.mail.sleeping(cancel)
	return m.session.PollRecords(ctx, maxPoll)
}

// transact steps all that one poll returned and commits the effects with the
// offsets. Whatever goes wrong, the partitions are as before and the records
// are read again; an error says that only a new member helps.
func (m *member) transact(ctx context.Context, fetches kgo.Fetches) error {
	// Shutdown must not cut it short: an open transaction stops the next owner.
	ctx = context.WithoutCancel(ctx)
	if err := m.session.Begin(); err != nil {
		m.session.AllowRebalance()
		return fmt.Errorf("begin a transaction: %w", err)
	}
	touched, rejected, err := m.step(fetches)
	var sent produced
	if err == nil {
		err = m.produce(touched, rejected, &sent)
	}
	// Before the end: a member that was kicked meanwhile would wait in it.
	m.session.AllowRebalance()
	if err == nil {
		// The end would flush too, but commits without a record that the client
		// itself has refused, for its size, say.
		err = errors.Join(m.session.Client().Flush(ctx), sent.err())
	}
	try := kgo.TryCommit
	if err != nil {
		try = kgo.TryAbort
	}
	committed, endErr := m.session.End(ctx, try)
	m.metrics.transaction(ctx, committed)
	for _, o := range touched {
		if committed {
			o.commit()
		} else {
			o.takeBack()
		}
	}
	switch {
	case err != nil || endErr != nil:
		// After an error of its end, nobody knows what became of a transaction
		// but the next member, who reads it.
		return fmt.Errorf("a transaction was taken back: %w", errors.Join(err, endErr))
	case !committed:
		m.log.Warn("a transaction was not committed; its records are read again")
		_ = wait(ctx, abortGap)
		return nil
	}
	for _, r := range rejected {
		m.log.Warn("record rejected", "topic", r.rec.Topic, "partition", r.rec.Partition, "offset", r.rec.Offset, "err", r.reason)
		m.metrics.deadLetter(r.rec.Topic, reasonOf(r.reason))
	}
	_ = wait(ctx, endGap)
	return nil
}

// rejected is a record that Handle would not take.
type rejected struct {
	rec    *kgo.Record
	reason error
}

// step hands the records to their partitions.
func (m *member) step(fetches kgo.Fetches) (touched []*owned, refused []rejected, err error) {
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		o := m.owned[p.Partition]
		if len(p.Records) == 0 || err != nil {
			return
		}
		if o == nil || !o.ready {
			err = fmt.Errorf("%d records of partition %d were read, which is not ready", len(p.Records), p.Partition)
			return
		}
		if o.touch() {
			touched = append(touched, o)
		}
		for _, rec := range p.Records {
			o.step(rec, m.cfg.Skip, func(rec *kgo.Record, reason error) {
				refused = append(refused, rejected{rec, reason})
			})
		}
		o.end = max(p.HighWatermark, o.next)
	})
	return touched, refused, err
}

// produced remembers the first record of a transaction that failed.
type produced struct {
	mu    sync.Mutex
	first error
}

func (p *produced) done(rec *kgo.Record, err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first == nil {
		p.first = fmt.Errorf("produce to %s partition %d: %w", rec.Topic, rec.Partition, err)
	}
}

func (p *produced) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first
}

// produce sends the effects of the whole batch; the transaction's end waits for them.
func (m *member) produce(touched []*owned, refused []rejected, sent *produced) error {
	var records []*kgo.Record
	for _, r := range refused {
		records = append(records, deadLetter(m.cfg.DeadLetters.Name, m.partitions.deadLetters, r.rec, r.reason))
	}
	for _, o := range touched {
		from := len(records)
		records = o.Effects(records)
		for _, rec := range records[from:] {
			if m.isState(rec.Topic) {
				rec.Key = append([]byte(m.cfg.KeyPrefix), rec.Key...)
			}
		}
		position, err := o.position(m.cfg.State[0].Name, m.cfg.KeyPrefix)
		if err != nil {
			return err
		}
		records = append(records, position)
	}
	for _, rec := range records {
		m.session.Produce(context.Background(), rec, sent.done)
	}
	return nil
}

func (m *member) isState(name string) bool {
	for _, t := range m.cfg.State {
		if t.Name == name {
			return true
		}
	}
	return false
}

// sendTicks sends what is due and returns when the next will be, or zero.
func (m *member) sendTicks(ctx context.Context) (next time.Time) {
	now := time.Now()
	for _, o := range m.owned {
		if !o.ready {
			continue
		}
		due, wanted := o.Due()
		at, ok := o.tick.at(due, wanted)
		switch {
		case !ok:
		case at.After(now):
			if next.IsZero() || at.Before(next) {
				next = at
			}
		default:
			m.sendTick(ctx, o, now)
		}
	}
	return next
}

func (m *member) sendTick(ctx context.Context, o *owned, now time.Time) {
	m.ticks++
	id := tickID(m.id, m.life, m.ticks)
	o.tick.send(id, now)
	m.side.Produce(ctx, tickRecord(m.cfg.Log.Name, o.id, id), func(_ *kgo.Record, err error) {
		if err != nil {
			m.mail.post(func() { o.tick.failed(id) })
		}
	})
}

// assign takes new partitions; "assigned what I hold" means drop and restore.
func (m *member) assign(ids []int32) {
	for _, id := range ids {
		if o := m.owned[id]; o != nil {
			m.drop(o)
		}
		m.take(id, nil)
	}
	m.report()
}

// take makes an empty partition and begins its restore, after a pause when the
// last one failed with failure.
func (m *member) take(id int32, failure error) {
	ctx, cancel := context.WithCancel(context.Background())
	o := &owned{
		Partition: m.cfg.Open(id, m.partitions.log), id: id, cancel: cancel, failure: failure,
		settingsNext: map[string]int64{},
	}
	m.owned[id] = o
	m.tasks.Go(func() {
		if failure != nil && wait(ctx, restoreAgain) != nil {
			return
		}
		begun := time.Now()
		err := m.restore(ctx, o)
		m.mail.post(func() { m.restored(o, time.Since(begun), err) })
	})
}

// restored lets a partition go on, if it is still ours.
func (m *member) restored(o *owned, took time.Duration, err error) {
	if m.owned[o.id] != o {
		return
	}
	if err != nil {
		m.log.Error("restore failed; the partition waits and is tried again", "partition", o.id, "err", err)
		m.drop(o)
		m.take(o.id, err)
		return
	}
	m.log.Info("partition restored", "partition", o.id, "offset", o.next, "took", took)
	part := map[string][]int32{m.cfg.Log.Name: {o.id}}
	cl := m.session.Client()
	if o.next > 0 {
		cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{m.cfg.Log.Name: {o.id: {Epoch: -1, Offset: o.next}}})
	}
	follow := map[string]map[int32]kgo.Offset{}
	for _, t := range m.cfg.Settings {
		follow[t.Name] = map[int32]kgo.Offset{o.id: kgo.NewOffset().At(o.settingsNext[t.Name])}
	}
	m.side.AddConsumePartitions(follow)
	o.ready = true
	cl.ResumeFetchPartitions(part)
	m.report()
}

// release gives partitions up. End re-arms the session's hooks, also where no
// transaction is open: until it is called, later revokes are swallowed.
func (m *member) release(how string, ids []int32) {
	for _, id := range ids {
		if o := m.owned[id]; o != nil {
			m.drop(o)
		}
	}
	m.log.Info("partitions "+how, "partitions", ids)
	if _, err := m.session.End(context.Background(), kgo.TryAbort); err != nil {
		m.log.Warn("end after a revoke", "err", err)
	}
	m.report()
}

func (m *member) drop(o *owned) {
	o.cancel()
	remove := map[string][]int32{}
	for _, t := range m.cfg.Settings {
		remove[t.Name] = []int32{o.id}
	}
	m.side.RemoveConsumePartitions(remove)
	o.Close()
	delete(m.owned, o.id)
}

// follow reads the settings that come after the restore and brings them to the loop.
func (m *member) follow(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := m.side.PollFetches(ctx)
		if fetches.IsClientClosed() {
			return
		}
		m.logErrors(fetches)
		if fetches.NumRecords() == 0 {
			continue
		}
		m.mail.post(func() {
			for rec := range fetches.RecordsAll() {
				m.setting(rec)
			}
		})
	}
}

func (m *member) setting(rec *kgo.Record) {
	o := m.owned[rec.Partition]
	if o == nil || !o.ready || rec.Offset < o.settingsNext[rec.Topic] {
		return
	}
	o.settingsNext[rec.Topic] = rec.Offset + 1
	if err := o.Setting(rec); err != nil {
		m.badSetting(rec, err)
	}
}

func (m *member) badSetting(rec *kgo.Record, err error) {
	m.log.Error("a setting cannot be read; the old one stays", "topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset, "err", err)
	m.metrics.badSetting(rec.Topic)
}

func (m *member) logErrors(fetches kgo.Fetches) {
	fetches.EachError(func(t string, p int32, err error) {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			m.log.Warn("fetch", "topic", t, "partition", p, "err", err)
		}
	})
}

// report tells the outside whether the member does its work.
func (m *member) report() {
	var why string
	if _, generation := m.session.Client().GroupMetadata(); generation < 0 {
		why = "not in the group"
	}
	lags := make(map[int32]int64, len(m.owned))
	for id, o := range m.owned {
		if !o.ready {
			why = fmt.Sprintf("partition %d is being restored", id)
			if o.failure != nil {
				why = fmt.Sprintf("partition %d cannot be restored: %v", id, o.failure)
			}
			continue
		}
		lags[id] = max(0, o.end-o.next)
		if o.next < o.backlog {
			why = fmt.Sprintf("partition %d is catching up: %d records to go", id, o.backlog-o.next)
		}
	}
	m.metrics.lag(m.id, lags)
	if why == "" {
		m.status.Store(nil)
	} else {
		m.status.Store(&why)
	}
}

// quiet leaves out the client's lines about each transaction.
type quiet struct{ kgo.Logger }

func (q quiet) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func names(topics []topic.Topic) []string {
	out := make([]string, len(topics))
	for i, t := range topics {
		out[i] = t.Name
	}
	return out
}
