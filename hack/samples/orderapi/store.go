// Package orderapi is the sample shop: a small HTTP API over one SQLite
// file. It is the system that the sample tool update-order-status changes.
package orderapi

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // registers the database driver "sqlite"
)

// Order is one row, and the JSON that the API answers with.
type Order struct {
	ID        int64  `json:"order_id"`
	Customer  string `json:"customer"`
	Item      string `json:"item"`
	Status    string `json:"status"`     // packed, shipped or delivered
	UpdatedAt string `json:"updated_at"` // RFC 3339, UTC, milliseconds
}

// ErrNoOrder is returned for an order ID that has no row.
var ErrNoOrder = errors.New("no such order")

// Statuses are the values a status may take; the table's CHECK says the same.
var Statuses = []string{"packed", "shipped", "delivered"}

const schema = `
CREATE TABLE IF NOT EXISTS orders (
  id         INTEGER PRIMARY KEY,
  customer   TEXT NOT NULL,
  item       TEXT NOT NULL,
  status     TEXT NOT NULL CHECK (status IN ('packed', 'shipped', 'delivered')),
  updated_at TEXT NOT NULL
);
INSERT OR IGNORE INTO orders VALUES
  (4820, 'Ada',   'tea pot',      'delivered', '2026-01-05T08:00:00.000Z'),
  (4821, 'Grace', 'desk lamp',    'packed',    '2026-01-06T09:30:00.000Z'),
  (4822, 'Edsger','fountain pen', 'packed',    '2026-01-06T10:15:00.000Z'),
  (4823, 'Barbara','notebook',    'shipped',   '2026-01-07T16:45:00.000Z');`

// Store is the orders table in one SQLite file. It is safe for concurrent use.
type Store struct{ db *sql.DB }

// Open opens the SQLite file at path, makes it and its sample rows when they
// are not there yet, and leaves rows that exist as they are.
func Open(ctx context.Context, path string) (*Store, error) {
	// SQLite has one writer: a second one waits for it instead of failing.
	s, err := open(path, "_pragma=busy_timeout(2000)&_pragma=temp_store(memory)")
	if err != nil {
		return nil, err
	}
	if _, err := s.db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(fmt.Errorf("create the table orders in %s: %w", path, err), s.Close())
	}
	return s, nil
}

// OpenReadOnly opens an existing SQLite file without the right to change it.
func OpenReadOnly(path string) (*Store, error) {
	return open(path, "mode=ro&_pragma=busy_timeout(2000)")
}

func open(path, options string) (*Store, error) {
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+options)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	return &Store{db: db}, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// Get returns one order, or ErrNoOrder.
func (s *Store) Get(ctx context.Context, id int64) (Order, error) {
	return get(ctx, s.db, id)
}

// SetStatus sets the status of one order and returns the row before and after.
// Setting the status that an order has already is no error; it moves updated_at.
func (s *Store) SetStatus(ctx context.Context, id int64, status string) (before, after Order, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return before, after, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if before, err = get(ctx, tx, id); err != nil {
		return before, after, err
	}
	after = before
	after.Status, after.UpdatedAt = status, time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	if _, err := tx.ExecContext(ctx, `UPDATE orders SET status = ?, updated_at = ? WHERE id = ?`,
		after.Status, after.UpdatedAt, id); err != nil {
		return before, after, err
	}
	return before, after, tx.Commit()
}

func get(ctx context.Context, q interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, id int64) (Order, error) {
	o := Order{ID: id}
	err := q.QueryRowContext(ctx, `SELECT customer, item, status, updated_at FROM orders WHERE id = ?`, id).
		Scan(&o.Customer, &o.Item, &o.Status, &o.UpdatedAt)
	if errors.Is(err, sql.ErrNoRows) {
		return o, ErrNoOrder
	}
	return o, err
}
