package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/settings"
	"github.com/tocsin/tocsin/services/monitor"
)

// replayCmd is `tocsin replay`.
type replayCmd struct {
	Hold     monitor.Holds `embed:"" prefix:"hold."`
	Settings string        `name:"settings" type:"path" placeholder:"FILE" help:"Settings of the accounts (YAML or JSON), in force from the first event on."`
	Until    string        `name:"until" placeholder:"TIME" help:"How far the clock runs on after the last line (RFC 3339). Default: one hour."`
	Print    string        `name:"print" enum:"notifications,mails" default:"notifications" help:"What to write: the notifications that are due."`
	Files    []string      `arg:"" name:"file" help:"Recorded events, one a line; each file is one partition, - is standard input."`
}

// Help is shown by --help.
func (*replayCmd) Help() string {
	return "Runs recorded events through the machines that the monitor runs, with no Kafka and no clock, and writes what people would be told: one JSON object a line, the same bytes each time. " +
		"Each file is a partition of its own; join the parts of one recording with cat."
}

// Validate names the first setting that is wrong.
func (c *replayCmd) Validate() error {
	if c.Until != "" {
		if _, err := codec.ParseTime(c.Until); err != nil {
			return fmt.Errorf("until: %w", err)
		}
	}
	if c.Print == "mails" {
		return errors.New("print: mails cannot be replayed yet, only notifications")
	}
	return nil
}

// Run replays the files.
func (c *replayCmd) Run(context.Context) error { return c.run(os.Stdin, os.Stdout) }

func (c *replayCmd) run(stdin io.Reader, stdout io.Writer) error {
	replay := monitor.Replay{Hold: c.Hold}
	if c.Settings != "" {
		book, err := readSettings(c.Settings)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		replay.Settings = book
	}
	if c.Until != "" {
		ms, err := codec.ParseTime(c.Until)
		if err != nil {
			return fmt.Errorf("until: %w", err)
		}
		replay.Until = time.UnixMilli(ms)
	}
	var recordings []monitor.Recording
	for _, name := range c.Files {
		if name == "-" {
			recordings = append(recordings, monitor.Recording{Name: "standard input", Reader: stdin})
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		defer f.Close()
		recordings = append(recordings, monitor.Recording{Name: name, Reader: f})
	}
	if err := replay.Notifications(stdout, recordings...); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

// readSettings is what the file says, as if it had been applied to nothing.
func readSettings(name string) (*settings.Book, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	write, err := settings.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	book := settings.NewBook()
	change, err := book.Apply(write, settings.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	book.Commit(change)
	return book, nil
}
