package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
)

const (
	maxInput  = 64 << 10 // bytes of stdin
	maxAnswer = 64 << 10 // bytes of the API's answer

	exTempFail = 75 // sysexits.h EX_TEMPFAIL: nothing was done, try again later
)

type request struct {
	OrderID int64  `json:"order_id"`
	Status  string `json:"status"`
}

// exitCode is 75 only if the API's host refused the connection: then no byte
// of the request was sent. Everything else may have taken effect, or will not
// get better by waiting.
func exitCode(err error) int {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return exTempFail
	}
	return 1
}

// setStatus does the one thing this program can, and returns the JSON to print.
func setStatus(ctx context.Context, args []string, stdin io.Reader, apiURL, token string) ([]byte, error) {
	req, err := parse(args, stdin)
	if err != nil {
		return nil, err
	}
	if apiURL == "" || token == "" {
		return nil, errors.New("ORDERS_URL and API_TOKEN must be set in the environment")
	}
	body, err := json.Marshal(map[string]string{"status": req.Status})
	if err != nil {
		return nil, err
	}
	httpReq, err := http.NewRequestWithContext(ctx, http.MethodPut,
		strings.TrimSuffix(apiURL, "/")+"/orders/"+strconv.FormatInt(req.OrderID, 10)+"/status", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ORDERS_URL: %w", err)
	}
	httpReq.Header.Set("Authorization", "Bearer "+token)
	httpReq.Header.Set("Content-Type", "application/json")
	client := &http.Client{
		// No proxy of the environment, and the token goes to no other host.
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(httpReq)
	if err != nil {
		return nil, err // a *url.Error: names method, URL and cause
	}
	defer func() { _ = res.Body.Close() }() // read to its end or given up
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the orders API's answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		var e struct {
			Error string `json:"error"`
		}
		_ = json.Unmarshal(answer, &e) // no JSON: the status line alone has to do
		return nil, fmt.Errorf("the orders API answered %s: %s", res.Status, e.Error)
	}
	var change struct {
		OrderID        int64  `json:"order_id"`
		Status         string `json:"status"`
		PreviousStatus string `json:"previous_status"`
	}
	if err := json.Unmarshal(answer, &change); err != nil {
		return nil, fmt.Errorf("the orders API's answer is no JSON: %w", err)
	}
	if change.OrderID != req.OrderID || change.Status != req.Status {
		return nil, fmt.Errorf("the orders API says order %d is %q, asked for was order %d to be %q",
			change.OrderID, change.Status, req.OrderID, req.Status)
	}
	return json.Marshal(map[string]any{
		"updated": true, "order_id": change.OrderID, "status": change.Status, "previous_status": change.PreviousStatus,
	})
}

// parse reads the order and its new status from argv, or from one JSON object
// on stdin when argv has only the subcommand.
func parse(args []string, stdin io.Reader) (request, error) {
	var req request
	usage := errors.New(`usage: orders set-status ORDER_ID --to=STATUS, or orders set-status with {"order_id":…,"status":…} on stdin`)
	if len(args) == 0 || args[0] != "set-status" {
		return req, usage
	}
	switch len(args) {
	case 1:
		dec := json.NewDecoder(io.LimitReader(stdin, maxInput))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&req); err != nil {
			return req, fmt.Errorf("stdin must be one JSON object of at most 64 KiB: %w", err)
		}
	case 3:
		id, err := strconv.ParseInt(args[1], 10, 64)
		status, ok := strings.CutPrefix(args[2], "--to=")
		if err != nil || !ok {
			return req, usage
		}
		req = request{OrderID: id, Status: status}
	default:
		return req, usage
	}
	if req.OrderID < 1 || req.Status == "" {
		return req, errors.New("order_id must be a positive integer and status must not be empty")
	}
	return req, nil
}
