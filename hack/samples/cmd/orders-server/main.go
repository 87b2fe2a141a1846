// Command orders-server is the sample shop's HTTP API.
//
//	orders-server            serves ORDERS_DB on ORDERS_ADDR; needs API_TOKEN
//	orders-server show ID    prints the row of one order as JSON, straight from the file
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"callgate.dev/callgate/hack/samples/orderapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders-server:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	db := cmp.Or(os.Getenv("ORDERS_DB"), "/var/lib/orders/orders.db")
	switch {
	case len(args) == 0:
		return serve(ctx, db)
	case len(args) == 2 && args[0] == "show":
		return show(ctx, db, args[1])
	}
	return errors.New("usage: orders-server [show ORDER_ID]")
}

func show(ctx context.Context, db, arg string) error {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return fmt.Errorf("the order ID %q is no integer", arg)
	}
	store, err := orderapi.OpenReadOnly(db)
	if err != nil {
		return err
	}
	order, err := store.Get(ctx, id)
	if err := errors.Join(err, store.Close()); err != nil {
		return fmt.Errorf("order %d in %s: %w", id, db, err)
	}
	return json.NewEncoder(os.Stdout).Encode(order)
}

func serve(ctx context.Context, db string) (err error) {
	token := os.Getenv("API_TOKEN")
	if token == "" {
		return errors.New("API_TOKEN is not set: give the token that clients must send")
	}
	store, err := orderapi.Open(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	srv := &http.Server{
		Addr:              cmp.Or(os.Getenv("ORDERS_ADDR"), ":8080"),
		Handler:           orderapi.NewHandler(store, token, log),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
	}
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		done <- srv.Shutdown(bound)
	}()
	log.Info("serving", "address", srv.Addr, "database", db)
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-done
}
