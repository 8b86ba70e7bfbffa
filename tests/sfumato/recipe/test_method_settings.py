"""The method's own settings, by what it declares of itself."""

from tests.sfumato.recipe.making import recipe


def test_the_time_of_a_query_is_measured_unless_a_person_chose_it():
    free, fixed, one = (
        recipe(*changes, method="rapid", public_classes=classes).method
        for changes, classes in (([], 52), (["method.k=0.75"], 52), ([], 1))
    )
    assert free.times == (0.8, 0.7) and fixed.times == one.times == () and fixed.k == 0.75 and one.k == 0.7
    assert free.extractor.contrast == fixed.extractor.contrast == "classes" and one.extractor.contrast == "views"
    assert recipe("method.v=0.45", method="rapid").method.times == (0.8, 0.7, 0.6, 0.5)


def test_a_batch_is_of_no_more_records_than_there_are():
    assert recipe(method="dppm", records=98).method.training.batch == 98
    assert recipe(method="dppm").method.training.batch == recipe(method="dppm", records=50_000).method.training.batch
    assert recipe("method.training.batch=300", method="dppm", records=98).method.training.batch == 300
