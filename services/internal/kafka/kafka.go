// Package kafka holds what every client of ours has in common: the brokers to
// talk to, how a partition is chosen, header names, and the creation and check
// of the topics in package topic. It knows no message.
package kafka

import (
	"context"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Config says where Kafka is.
type Config struct {
	Brokers     []string `name:"brokers" default:"${kafka_brokers=127.0.0.1:9092}" help:"Kafka brokers, host:port, comma separated."`
	TopicPrefix string   `name:"topic-prefix" default:"tocsin." help:"What the names of all topics begin with."`
}

// Validate names the first setting that is wrong.
func (c Config) Validate() error {
	if len(c.Brokers) == 0 {
		return fmt.Errorf("kafka.brokers: at least one host:port is needed")
	}
	for _, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return fmt.Errorf("kafka.brokers: %q is not host:port: %w", b, err)
		}
	}
	return nil
}

// Header names of our records (contract: Record).
const (
	HeaderType        = "type"
	HeaderOccurTime   = "occur-time"
	HeaderDataCenter  = "datacenter"
	HeaderPublisher   = "publisher"
	HeaderTraceParent = "traceparent"
	HeaderTraceState  = "tracestate"
)

// Header is the value of a record's header, or "".
func Header(rec *kgo.Record, name string) string {
	for i := range rec.Headers {
		if rec.Headers[i].Key == name {
			return string(rec.Headers[i].Value)
		}
	}
	return ""
}

// Dialer connects to a broker; nil is the ordinary network.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// Options are what every client of ours is made with: brokers, our choice of
// partitions, and the dialer of a test.
func (c Config) Options(dial Dialer) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.Lz4Compression(), kgo.NoCompression()),
	}
	if dial != nil {
		opts = append(opts, kgo.Dialer(dial))
	}
	return opts
}
