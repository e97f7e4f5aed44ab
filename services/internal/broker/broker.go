// Package broker is the embedded Kafka of 'tocsin up': kfake with its data in
// a directory. It is for trying out and for small sites: one node, no
// replication, and the append time is this process's clock. It refuses a
// directory that another process uses or whose log is damaged.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gofrs/flock"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/config"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/topic"
)

// createTimeout bounds the creation of the topics at start.
const createTimeout = 10 * time.Second

// Lock takes the data directory for this process, making it if needed. The
// lock goes with the process, however it ends.
func Lock(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	if err := writable(dir); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
	}
	if !ok {
		return nil, fmt.Errorf("data directory %s is in use by another 'tocsin up': stop that one, or choose another with --data", dir)
	}
	return lock.Close, nil
}

// writable tries to write into dir and the directories directly in it.
func writable(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	paths := []string{dir}
	for _, e := range entries {
		if e.IsDir() {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	for _, path := range paths {
		probe, err := os.CreateTemp(path, ".probe-*")
		if err != nil {
			return fmt.Errorf("data directory %s cannot be written, choose another with --data or make it ours: %w", dir, err)
		}
		if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
			return fmt.Errorf("data directory %s: %w", dir, err)
		}
	}
	return nil
}

// Open starts the broker on address with its data in dir and makes the topics
// that are missing, each with n partitions; the counts of those that exist stay.
func Open(dir string, address config.Address, topics []topic.Topic, n int32, log *slog.Logger) (*kfake.Cluster, error) {
	if err := verify(dir); err != nil {
		return nil, fmt.Errorf("data directory %s: %w: restore it from a copy, or move it away to start anew", dir, err)
	}
	if err := closeTransactions(dir); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	_, portText, err := net.SplitHostPort(address.String())
	if err != nil {
		return nil, fmt.Errorf("broker address: %w", err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("broker address %s: the port is no number", address)
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.Ports(port),
		kfake.DataDir(dir),
		kfake.WithLogger(logger{log}),
		kfake.BrokerConfigs(map[string]string{"log.cleaner.backoff.ms": "60000"}),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) { return address.Listen(net.Listen) }),
	)
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker on data directory %s: %w", dir, err)
	}
	if err := create(cluster, topics, n); err != nil {
		cluster.Close()
		return nil, err
	}
	return cluster, nil
}

func create(cluster *kfake.Cluster, topics []topic.Topic, n int32) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		return fmt.Errorf("make a client of the embedded broker: %w", err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), createTimeout)
	defer cancel()
	_, err = kafka.Create(ctx, cl, topics, n, 1)
	return err
}

// logger passes on what kfake says about trouble.
type logger struct{ log *slog.Logger }

func (l logger) Logf(level kfake.LogLevel, format string, args ...any) {
	switch level {
	case kfake.LogLevelError:
		l.log.Error(fmt.Sprintf(format, args...))
	case kfake.LogLevelWarn:
		l.log.Warn(fmt.Sprintf(format, args...))
	}
}
