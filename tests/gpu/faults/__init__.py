"""Faults around captures, and what has to hold then.

What a test runs it compares with eager runs, bit for bit: that is in each test, by `rig.Case.check`
or by a session that does not capture. `rig.fault` around a test adds the rest: that it ends, that
what it has happen during a capture (`misbehaving.hook`) does happen then, that a later capture
works and is right, and that nothing is held afterwards (handles of the driver, bytes and pools of
the device). Tests in processes of their own (`scripts`) have no such wrapper. They end in time or
are killed; the parent of a forked child captures again and looks at what it holds; fresh processes
compare themselves with eager runs; and where a device has failed for good (d) nothing can be
captured later, or compared: all that is asked for is that every run says so.

The tests run on a device with MONOGRAPH_TEST_DEVICE=cuda, else on a fake driver (`fakes`, based on
`tests.gpu.fake_driver`); (f) marks what is told of a driver that misbehaves, which `misbehaving`
makes of either. (d) needs a device. Tests that need it for themselves (`rig.alone`) are left out
where others run beside them; `tests.gpu.sweep` runs them before the others.

| what | where |
|---|---|
| state aliases an input on the first call | `test_state.test_state_is_an_input_too_on_the_first_call` |
| a raise at each kernel during a capture | `test_capture_errors.test_a_raise_at_each_kernel` |
| the end of a capture fails (f) | `test_capture_errors.test_the_end_of_a_capture_and_what_is_before_it` |
| instantiate fails (f) | `test_capture_errors.test_instantiate_fails` |
| out of memory during a capture (f) | `test_capture_errors.test_out_of_memory*` |
| any call to the driver fails (f) | `test_any_call.test_any_call_may_fail` |
| another thread allocates or synchronises | `test_threads.test_another_thread_works_during_a_capture` |
| two threads make the first call | `test_threads.test_two_threads_make_the_first_call` |
| two threads replay | `test_threads.test_threads_replay_on_streams_of_their_own` |
| a collection destroys a graph during a capture | `test_threads.test_a_collection_destroys_graphs_during_a_capture` |
| ... while a caller allocates to a pool of torch's (d) | `test_threads.test_graphs_are_destroyed_while_a_caller_allocates_to_a_pool` |
| pinned memory is allocated during a capture | `test_threads.test_another_thread_works_during_a_capture[pin]` |
| a later shape needs a larger workspace (d) | `test_shapes.test_a_later_shape_needs_a_larger_workspace` |
| freed temporaries are poisoned | `test_lifetimes.test_freed_temporaries_are_poisoned` |
| two shapes alternate | `test_shapes.test_two_shapes_alternate` |
| a new address on each of 1,000 calls | `test_lifetimes.test_a_new_address_on_every_call` |
| the caller frees a bound input | `test_lifetimes.test_the_caller_frees_*` |
| a session goes while its pinned memory is in use | `test_lifetimes.test_pinned_memory_outlives_the_run_that_uses_it` |
| the input is overwritten after `run_async` | `test_streams.test_the_input_is_overwritten_right_after_run_async` |
| the output is consumed on another stream | `test_streams.test_the_output_is_consumed_on_another_stream` |
| output N is held while N+1 runs | `test_lifetimes.test_an_output_is_held_while_the_next_run_goes_on` |
| f(f(x)) | `test_lifetimes.test_an_output_is_fed_again` |
| 1,000 shapes in bounded memory | `test_shapes.test_a_thousand_shapes_in_bounded_memory` |
| shape, dtype, device, weights separate the cache | `test_shapes.test_*_separate*_what_is_kept`, of devices two fake ones or two real ones |
| the caller is already capturing | `test_callers`, `test_streams.test_the_caller_*`, `test_control_flow.test_a_caller_who_captures_*` |
| a stream that had a run is captured by its owner | `test_captured_streams` |
| data that do not fit, in one run of several | `test_notes` |
| inputs and outputs that are views | `test_views` |
| a hidden synchronisation | `test_capture_errors.test_a_hidden_synchronisation` |
| random ops differ, and repeat with a seed | `test_state.test_random_numbers_differ_between_replays_and_repeat_with_a_seed` |
| a changed host scalar changes the output | `test_state.test_a_changed_host_scalar_changes_the_output` |
| an error of the device poisons the context | `test_processes.test_an_error_of_the_device_poisons_the_context` (d), `test_failed_device` (f) |
| the session is deleted in the middle of a replay | `test_processes.test_a_session_is_deleted_in_the_middle_of_a_replay`, `test_processes.test_a_run_on_arrays_is_dropped_with_its_session`, `test_lifetimes.test_deleted_in_the_middle_of_a_replay` |
| the current device is not the session's | `test_streams.test_the_current_device_is_not_the_sessions`, `test_streams.test_a_thread_that_is_new_to_the_device` (d) |
| a fork after the first use | `test_processes.test_a_fork_after_the_first_use` |
| copies and pickles of a session | `test_processes.test_copies_are_refused` |
| 20 fresh processes agree, with one tuning cache | `test_processes.test_fresh_processes_agree` |
| 1,000 times made, replayed, destroyed | `test_lifetimes.test_many_come_and_go`, `test_lifetimes.test_driver_memory_does_not_grow` (d), `test_processes.test_sessions_come_and_go` |
| branches and loops | `test_control_flow` |
"""  # noqa: E501
