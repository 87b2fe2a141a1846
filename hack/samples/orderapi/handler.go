package orderapi

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxBody bounds a request body, in bytes; the only one we read is one short object.
const maxBody = 4096

// StatusChange is the answer to PUT /orders/{id}/status.
type StatusChange struct {
	Order
	PreviousStatus string `json:"previous_status"`
}

// NewHandler serves the store:
//
//	GET /healthz               200, no token needed
//	GET /orders/{id}           200 with an Order
//	PUT /orders/{id}/status    200 with a StatusChange; the body is {"status": "shipped"}
//
// Every request under /orders needs "Authorization: Bearer <token>" (401).
// Errors are {"error": "…"}: 400 for a bad ID, body or status, 404 for an
// unknown order, 500 when SQLite fails.
func NewHandler(store *Store, token string, log *slog.Logger) http.Handler {
	api := http.NewServeMux()
	api.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := orderID(r)
		if err != nil {
			answerError(w, http.StatusBadRequest, err.Error())
			return
		}
		order, err := store.Get(r.Context(), id)
		if err != nil {
			answerStoreError(w, log, id, err)
			return
		}
		answer(w, http.StatusOK, order)
	})
	api.HandleFunc("PUT /orders/{id}/status", func(w http.ResponseWriter, r *http.Request) {
		id, err := orderID(r)
		if err != nil {
			answerError(w, http.StatusBadRequest, err.Error())
			return
		}
		var body struct {
			Status string `json:"status"`
		}
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&body); err != nil {
			answerError(w, http.StatusBadRequest, `the body must be {"status": "…"}, at most 4096 bytes: `+err.Error())
			return
		}
		if !slices.Contains(Statuses, body.Status) {
			answerError(w, http.StatusBadRequest,
				fmt.Sprintf("status %q is unknown, use one of %s", body.Status, strings.Join(Statuses, ", ")))
			return
		}
		before, after, err := store.SetStatus(r.Context(), id, body.Status)
		if err != nil {
			answerStoreError(w, log, id, err)
			return
		}
		log.Info("status set", "order", id, "from", before.Status, "to", after.Status)
		answer(w, http.StatusOK, StatusChange{Order: after, PreviousStatus: before.Status})
	})

	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]bool{"ok": true})
	})
	mux.Handle("/orders/", requireToken(token, api))
	return mux
}

func requireToken(token string, next http.Handler) http.Handler {
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			answerError(w, http.StatusUnauthorized, "the Authorization header has no valid Bearer token")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func orderID(r *http.Request) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id < 1 {
		return 0, errors.New("the order ID must be a positive integer")
	}
	return id, nil
}

func answerStoreError(w http.ResponseWriter, log *slog.Logger, id int64, err error) {
	if errors.Is(err, ErrNoOrder) {
		answerError(w, http.StatusNotFound, fmt.Sprintf("there is no order %d", id))
		return
	}
	log.Error("database", "order", id, "error", err)
	answerError(w, http.StatusInternalServerError, "the orders database failed; its log has the reason")
}

func answerError(w http.ResponseWriter, code int, message string) {
	answer(w, code, map[string]string{"error": message})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client went away: nobody is left to tell
}
