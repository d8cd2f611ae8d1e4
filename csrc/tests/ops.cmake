add_core_test(test_rows)
add_core_test(test_exchange_ops)
