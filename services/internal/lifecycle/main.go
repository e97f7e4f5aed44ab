package lifecycle

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/tocsin/tocsin/services/internal/config"
)

// Main is the whole of a program: it fills the struct that settings points at
// (package config says from where), calls its method, or that of the command
// chosen,
//
//	Run(ctx context.Context) error
//
// and ends the process: exit code 0 done, 1 failed, 2 wrong use or settings.
// The context ends at the first SIGINT or SIGTERM; the second ends the process
// at once.
func Main(name, about string, settings any) {
	os.Exit(run(name, about, settings, os.Args[1:], os.Stderr))
}

func run(name, about string, settings any, args []string, stderr io.Writer) int {
	cmd, err := config.Program{Name: name, About: about, Settings: settings}.Parse(args)
	if err == nil && cmd != nil {
		ctx, stop := untilSignal(context.Background(), stderr)
		defer stop()
		cmd.BindTo(ctx, (*context.Context)(nil))
		err = cmd.Run()
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
	}
	return config.ExitCode(err)
}

// untilSignal is a context that ends when the process is told to end. Whoever
// tells it twice does not want to wait.
func untilSignal(parent context.Context, stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		select {
		case s := <-signals:
			fmt.Fprintf(stderr, "second %v: ending at once\n", s)
			os.Exit(1)
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
